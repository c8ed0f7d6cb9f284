"""Which requests a GPU samples by itself, and what it must know of their options. Pure; knows no tensor.

The device does greedy choices and draws with temperature, top-k, top-p and min-p (`kernels/sampler`). What depends on
the tokens before it, on a grammar or on ids that a request names, and what reports probabilities, is sampled on the
host from copied logits: the same tokens, one copy and one wait a window later.
"""

import math

from strata.kernels.sampler.slots import ChoiceOptions
from strata.sampling.options import SamplingOptions


def samples_on_device(options: SamplingOptions, has_grammar: bool) -> bool:
    """Whether the device chooses this request's tokens. (That it ends the reply too, its stop ids must fit a slot.)"""
    on_host = (
        options.has_penalties
        or bool(options.logit_bias)
        or options.min_tokens > 0
        or options.logprobs is not None
        or has_grammar
    )
    return not on_host


def device_options(options: SamplingOptions, choice: int) -> ChoiceOptions:
    """The options as the device reads them, for a request's `choice`-th reply. Those that draw must have a seed."""
    if options.greedy:
        return ChoiceOptions()
    if options.seed is None:
        raise ValueError("options that draw need a seed: call SamplingOptions.seeded() where the request starts")
    return ChoiceOptions(
        inverse_temperature=1 / options.temperature,
        top_k=max(options.top_k, 0),
        top_p=options.top_p,
        log_min_p=math.log(options.min_p) if options.min_p > 0 else float("-inf"),
        seed=options.seed,
        choice=choice,
    )
