"""What a choice of a token is reported as. Plain values: they cross the border between processes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class Draw:
    """A chosen token."""

    token_id: int
    logprob: float | None = None  # of the model's own distribution; None if not asked for
    top_logprobs: tuple[TokenLogprob, ...] = ()
