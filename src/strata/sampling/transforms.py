"""What sampling options do to logits before a token is drawn: pure functions on float32 `[rows, vocabulary]`.

Know numbers only; no request, no random number. `transform` is the order in which they are applied, which is part of
what an answer depends on: repetition penalty, frequency and presence penalty, bias, temperature, top-k, top-p, min-p.
A token that is ruled out has the logit -inf. Rows never look at each other, and of equal logits the lower id counts as
the larger. Divisions by an option are products with its reciprocal, which every device computes alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from strata.sampling.options import SamplingOptions

_RULED_OUT = float("-inf")


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


def scale_by_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Distances from the row's largest logit, over the temperature: no temperature makes them overflow."""
    return (logits - logits.amax(dim=-1, keepdim=True)) * (1 / temperature)


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Keep the k largest logits."""
    if k >= logits.shape[-1]:
        return logits
    smallest = torch.topk(logits, k, dim=-1).values[:, -1:]
    larger, equal = logits > smallest, logits == smallest
    room = k - larger.sum(dim=-1, keepdim=True)  # of the equal ones, the first that fit
    return logits.masked_fill(~(larger | (equal & (equal.cumsum(dim=-1) <= room))), _RULED_OUT)


def keep_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the fewest largest tokens whose probabilities, of those still there, add up to p; at least one.

    Added in float64 from the largest down, so that a row's sum does not depend on how a device adds.
    """
    ordered, token_ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    weights = torch.exp(ordered.double() - ordered[:, :1].double())
    sums = weights.cumsum(dim=-1)
    enough_before = (sums - weights) >= p * sums[:, -1:]
    enough_before[:, 0] = False
    return logits.masked_fill(torch.zeros_like(enough_before).scatter(-1, token_ids, enough_before), _RULED_OUT)


def keep_min_p(logits: torch.Tensor, min_p: float) -> torch.Tensor:
    """Keep tokens with at least `min_p` times the probability of the likeliest."""
    least = logits.amax(dim=-1, keepdim=True) + math.log(min_p)
    return logits.masked_fill(logits < least, _RULED_OUT)


def adjust(logits: torch.Tensor, options: SamplingOptions, history: History | None) -> torch.Tensor:
    """Penalties and bias: what also greedy choices depend on. `history` may be None without penalties."""
    if options.has_penalties:
        if history is None:
            raise ValueError("penalties need the history")
        logits = penalize(logits, history, options)
    return add_bias(logits, options.logit_bias) if options.logit_bias else logits


def transform(logits: torch.Tensor, options: SamplingOptions, history: History | None = None) -> torch.Tensor:
    """All of it, for a temperature above 0: the logits whose softmax is the distribution that is drawn from."""
    logits = scale_by_temperature(adjust(logits, options, history), options.temperature)
    if options.top_k > 0:
        logits = keep_top_k(logits, options.top_k)
    if options.top_p < 1:
        logits = keep_top_p(logits, options.top_p)
    if options.min_p > 0:
        logits = keep_min_p(logits, options.min_p)
    return logits
