"""What the engine is asked and what it answers, in token ids. Knows no text and no model."""

from dataclasses import dataclass

from strata.sampling.options import SamplingOptions
from strata.sampling.sampler import Draw
from strata.types import FinishReason, Usage


@dataclass(frozen=True)
class TokenRequest:
    """One prompt and how to continue it."""

    prompt: tuple[int, ...]
    options: SamplingOptions
    stop_token_ids: frozenset[int] = frozenset()  # any of them ends the reply and is its last token


@dataclass(frozen=True)
class TokensDrawn:
    """The tokens of one decode window, in order; the first window is the end of reading the prompt."""

    draws: tuple[Draw, ...]
    usage: Usage


@dataclass(frozen=True)
class RunEnded:
    """The last event of a run."""

    reason: FinishReason
    usage: Usage
    error: str | None = None
