"""The small frozen values that cross borders: what a caller says and what a reply is made of.

Knows no tensor, no tokenizer and no engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

ProgressCallback = Callable[[str, int, int], None]  # stage in words, done, total; the units are the stage's own


class FinishReason(Enum):
    """Why a reply ended."""

    STOP = "stop"  # the model ended it, or a stop string came
    LENGTH = "length"  # max_tokens or the context is used up
    CANCELLED = "cancelled"  # the caller ended it
    ERROR = "error"  # the engine failed; the event carries the sentence


@dataclass(frozen=True)
class ReadAhead:
    """What a device has to do for the prompt that is being read, in seconds, about."""

    queued: float = 0.0  # what was launched and has not ended
    next_step: float | None = None  # the next step; None: not known
    spare: float = 0.0  # behind the queue the device may work for others so long, for it would wait for experts


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str  # system, user, assistant or tool
    content: str


@dataclass(frozen=True)
class TextPiece:
    """A piece of a reply. A token that completes no character has no text; the end of a reply may be text alone."""

    text: str
    token_id: int | None = None
    logprob: float | None = None  # natural logarithm, of the model's own distribution; None if not asked for
    top_logprobs: tuple[tuple[int, float], ...] = ()  # the likeliest tokens' ids and logprobs


@dataclass(frozen=True)
class Usage:
    """What a reply took: tokens counted, seconds on the wall clock."""

    prompt_tokens: int
    completion_tokens: int
    windows: int  # decode windows run
    drafted_tokens: int
    accepted_drafts: int
    read_seconds: float  # reading the prompt, up to the first token
    decode_seconds: float  # from the first token to the last
    cached_tokens: int = 0  # of the prompt's, those that a kept conversation had already: they were not read
    waiting_seconds: float = 0.0  # for a slot

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens a second; the first token belongs to reading the prompt. 0 if only one was made."""
        after_first = self.completion_tokens - 1
        return after_first / self.decode_seconds if after_first > 0 and self.decode_seconds > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens read a second; those of a kept conversation were not."""
        return (self.prompt_tokens - self.cached_tokens) / self.read_seconds if self.read_seconds > 0 else 0.0


@dataclass(frozen=True)
class Finished:
    """The last event of every reply."""

    reason: FinishReason
    usage: Usage
    stop_string: str | None = None  # the one that ended the reply
    error: str | None = None  # one sentence if the reason is ERROR
