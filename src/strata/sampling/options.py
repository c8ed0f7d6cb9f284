"""What a request may say about how its tokens are chosen and where its reply ends.

Knows ranges and what each option means; computes nothing.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strata.errors import RequestError

LARGEST_LOGPROBS = 20  # the largest top_logprobs of the OpenAI API


def new_seed() -> int:
    """A seed for a request that names none; 63 bits, so that it fits every client's signed integer."""
    return int.from_bytes(os.urandom(8), "little") >> 1


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen. The defaults are greedy: the token with the largest logit, the lowest id among equals.

    Every field is checked; RequestError names the field, its value and what would work.
    """

    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it. 1 is the model's own distribution."""
    top_k: int = 0
    """Draw among the k largest logits only. 0 or -1: all."""
    top_p: float = 1.0
    """Draw among the fewest tokens whose probabilities reach this sum. 1: all."""
    min_p: float = 0.0
    """Draw among the tokens with at least this share of the largest probability. 0: all."""
    repetition_penalty: float = 1.0
    """Divides positive logits, multiplies others, of tokens that stand in the prompt or the reply. 1: none."""
    presence_penalty: float = 0.0
    """Is subtracted from the logits of tokens that stand in the reply (not the prompt)."""
    frequency_penalty: float = 0.0
    """Is subtracted from a token's logit once for each time that it stands in the reply (not the prompt)."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Is added to the logits of these token ids."""
    seed: int | None = None
    """Same seed, same prompt, same options: same reply. None: a fresh one is drawn by whoever starts the request."""
    max_tokens: int | None = None
    """Tokens that the reply may have. None: as many as the context holds."""
    min_tokens: int = 0
    """Tokens that the reply must have before an end-of-text or stop token may end it. Stop strings end it anyway."""
    stop: tuple[str, ...] = ()
    """Strings that end the reply; they are not part of it. A single string or any sequence of strings may be given."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the reply, besides the model's own end-of-text ids."""
    ignore_eos: bool = False
    """Go on behind the model's end-of-text ids."""
    logprobs: int | None = None
    """How many of the likeliest tokens to report with each token's log-probability. None: no log-probabilities."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _made("stop", stop, tuple, "a string or a sequence of strings"))
        ids = _made("stop_token_ids", self.stop_token_ids, tuple, "a sequence of token ids")
        object.__setattr__(self, "stop_token_ids", ids)
        bias = _made("logit_bias", self.logit_bias, dict, "a map from token ids to numbers")
        object.__setattr__(self, "logit_bias", bias)
        self._check_numbers()
        self._check_counts()
        self._check_stops_and_bias()

    @property
    def greedy(self) -> bool:
        """Nothing is drawn: the largest logit wins."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """The choice depends on the tokens that came before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def seeded(self) -> "SamplingOptions":
        """These options with a seed: their own, or a fresh one. Whoever starts a request calls this once."""
        return self if self.seed is not None else dataclasses.replace(self, seed=new_seed())

    def check_vocabulary(self, vocabulary_size: int) -> None:
        """Raises RequestError if the options name a token id that the model does not have."""
        last = vocabulary_size - 1
        for name, token_ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in token_ids:
                if not 0 <= token_id <= last:
                    raise RequestError(f"{name} names token id {token_id}; this model's ids are 0 to {last}")

    def _check_numbers(self) -> None:
        _check_range("temperature", self.temperature, 0, 100)
        if 0 < self.temperature < 1e-3:
            raise RequestError(f"temperature is {self.temperature}; it must be 0 (greedy) or from 0.001 to 100")
        _check_range("top_p", self.top_p, 0, 1, " and above 0 (for the likeliest token use temperature 0)")
        if self.top_p == 0:
            raise RequestError("top_p is 0; it must be above 0 (for the likeliest token use temperature 0)")
        _check_range("min_p", self.min_p, 0, 1)
        _check_range("repetition_penalty", self.repetition_penalty, 0.01, 100)
        _check_range("presence_penalty", self.presence_penalty, -100, 100)
        _check_range("frequency_penalty", self.frequency_penalty, -100, 100)

    def _check_counts(self) -> None:
        _check_integer("top_k", self.top_k, -1, None, "-1 or 0 (all tokens) or larger")
        if self.seed is not None:
            _check_integer("seed", self.seed, -(1 << 63), (1 << 64) - 1, "an integer of 64 bits")
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, None, "1 or larger")
        most = self.max_tokens
        works = "0 or larger" if most is None else f"from 0 to max_tokens, which is {most}"
        _check_integer("min_tokens", self.min_tokens, 0, most, works)
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, LARGEST_LOGPROBS, f"from 0 to {LARGEST_LOGPROBS}")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos is {self.ignore_eos!r}; it must be true or false")

    def _check_stops_and_bias(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError(f"stop holds {text!r}; every stop string needs at least one character")
        for token_id in self.stop_token_ids:
            _check_integer("stop_token_ids", token_id, 0, None, "a token id")
        for token_id, bias in self.logit_bias.items():
            _check_integer("logit_bias", token_id, 0, None, "a map from token ids to numbers")
            _check_range(f"logit_bias of token {token_id}", bias, -100, 100)


def _made(name: str, value: Any, kind: type, works: str) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise RequestError(f"{name} is {value!r}; it must be {works}") from None


def _check_range(name: str, value: float, low: float, high: float, also: str = "") -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # which no NaN is
        raise RequestError(f"{name} is {value!r}; it must be a number from {low} to {high}{also}")


def _check_integer(name: str, value: int, low: int, high: int | None, works: str) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        raise RequestError(f"{name} is {value!r}; it must be {works}")
