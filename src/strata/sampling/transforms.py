"""What sampling options do to logits before a token is drawn: pure functions on float32 `[rows, vocabulary]`.

Know options and numbers; no random number. `transform` is the order in which they are applied, which is part of what
an answer depends on: repetition penalty, frequency and presence penalty, bias, temperature, top-k, top-p, min-p. The
last four are computed on GPUs too: their definitions stand in `kernels/sampler/filters`. A token that is ruled out has
the logit -inf. Rows never look at each other, and of equal logits the lower id counts as the larger. Divisions by an
option are products with its reciprocal, which every device computes alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from strata.kernels.sampler.filters import keep_min_p, keep_top_k, keep_top_p, scale_by_temperature
from strata.sampling.options import SamplingOptions


@dataclass(frozen=True)
class History:
    """The tokens before the one to be drawn, for as many rows as the logits have."""

    in_prompt: torch.Tensor  # [rows, vocabulary] bool: for the repetition penalty only
    counts: torch.Tensor  # [rows, vocabulary] int32: how often each token stands in the reply so far


def penalize(logits: torch.Tensor, history: History, options: SamplingOptions) -> torch.Tensor:
    """Repetition, frequency and presence penalties.

    The prompt's tokens count for the repetition penalty only; presence and frequency look at the reply alone.
    """
    in_reply = history.counts > 0
    if options.repetition_penalty != 1:
        penalty = options.repetition_penalty
        penalized = torch.where(logits > 0, logits * (1 / penalty), logits * penalty)
        logits = torch.where(history.in_prompt | in_reply, penalized, logits)
    if options.frequency_penalty != 0:
        logits = logits - history.counts.to(torch.float32) * options.frequency_penalty
    if options.presence_penalty != 0:
        logits = logits - in_reply.to(torch.float32) * options.presence_penalty
    return logits


def add_bias(logits: torch.Tensor, bias: Mapping[int, float]) -> torch.Tensor:
    """Add each token id's bias."""
    token_ids = torch.tensor(list(bias), dtype=torch.int64, device=logits.device)
    values = torch.tensor(list(bias.values()), dtype=torch.float32, device=logits.device)
    biased = logits.clone()
    biased[:, token_ids] += values
    return biased


def adjust(logits: torch.Tensor, options: SamplingOptions, history: History | None) -> torch.Tensor:
    """Penalties and bias: what also greedy choices depend on. `history` may be None without penalties."""
    if options.has_penalties:
        if history is None:
            raise ValueError("penalties need the history")
        logits = penalize(logits, history, options)
    return add_bias(logits, options.logit_bias) if options.logit_bias else logits


def transform(logits: torch.Tensor, options: SamplingOptions, history: History | None = None) -> torch.Tensor:
    """All of it, for a temperature above 0: the logits whose softmax is the distribution that is drawn from."""
    logits = scale_by_temperature(adjust(logits, options, history), 1 / options.temperature)
    if options.top_k > 0:
        logits = keep_top_k(logits, options.top_k)
    if options.top_p < 1:
        logits = keep_top_p(logits, options.top_p)
    if options.min_p > 0:
        logits = keep_min_p(logits, math.log(options.min_p))
    return logits
