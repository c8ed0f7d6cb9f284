"""What the engine is asked and what it answers, in token ids. Knows no text and no model."""

from dataclasses import dataclass

from strata.sampling.draw import Draw
from strata.sampling.grammar_spec import GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.types import FinishReason, Usage


@dataclass(frozen=True)
class TokenRequest:
    """One prompt and how to continue it."""

    prompt: tuple[int, ...]
    options: SamplingOptions
    stop_token_ids: frozenset[int] = frozenset()  # any of them ends the reply and is its last token
    choice: int = 0  # numbers the replies of a request that asks for several of one prompt
    grammar: GrammarSpec | None = None  # what the reply must be
    prompt_logprobs: int | None = None  # likeliest tokens to report with every token of the prompt; None: nothing
    boundaries: tuple[int, ...] = ()  # rising positions of the prompt at which its turns begin; empty: not known


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
