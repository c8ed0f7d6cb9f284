"""What the device knows of the reply in each slot: one row of 32 words, which a host sets by one copy when it starts.

Knows numbers; no request. Between two windows the words of a live slot belong to the kernels.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Columns of the words. Floats are their bits; a 64-bit number has its low half first.
POSITION = 0  # rows committed: the position of the next row
LAST_TOKEN = 1  # drawn, and not yet part of the state
BUDGET = 2  # tokens that the reply may still have
IS_LIVE = 3  # 0: no reply, or it has ended
INVERSE_TEMPERATURE = 4  # float32; 0: greedy
TOP_K = 5  # 0: all
LOG_MIN_P = 6  # float32; -inf: all
CHOICE = 7
SEED = 8  # and 9
TOP_P = 10  # and 11: float64; 1: all
STOP_IDS = 12  # to 27; -1: unused
MOST_STOP_IDS = 16
WORDS = 32  # 128 bytes

LARGEST_TOP_K = 2**31 - 1


@dataclass(frozen=True)
class ChoiceOptions:
    """How the device chooses tokens for one reply. The defaults are greedy."""

    inverse_temperature: float = 0.0  # rounded to float32; 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 1: all
    log_min_p: float = float("-inf")  # rounded to float32
    seed: int = 0  # modulo 2^64
    choice: int = 0  # which of a request's replies

    @property
    def has_filters(self) -> bool:
        """Whether tokens are drawn, and top-k or top-p may rule some out. A row's own logits are enough for min-p."""
        return self.inverse_temperature != 0.0 and (self.top_k > 0 or self.top_p < 1.0)


@dataclass(frozen=True)
class ReplyStart:
    """Where a reply stands when its first window comes."""

    position: int
    last_token: int
    budget: int
    stop_ids: Sequence[int]
    options: ChoiceOptions


@dataclass(frozen=True)
class SlotVariables:
    """int32 [slots, WORDS] on the computing device."""

    words: torch.Tensor

    @classmethod
    def empty(cls, slots: int, device: torch.device | str) -> "SlotVariables":
        """Slots without a reply."""
        return cls(torch.zeros(slots, WORDS, dtype=torch.int32, device=device))

    @property
    def count(self) -> int:
        """Slots."""
        return self.words.shape[0]


def slot_words(start: ReplyStart) -> list[int]:
    """The words of a live slot, signed 32-bit numbers. Raises ValueError for too many stop ids or no budget."""
    stop_ids = sorted(set(start.stop_ids))
    if len(stop_ids) > MOST_STOP_IDS:
        raise ValueError(f"a slot on the device has room for {MOST_STOP_IDS} stop ids; there are {len(stop_ids)}")
    if start.budget < 1:
        raise ValueError(f"a reply that starts needs room for a token; its budget is {start.budget}")
    options = start.options
    numbers = struct.pack(
        "<4i f i f i Q d",
        start.position, start.last_token, start.budget, 1,
        options.inverse_temperature, min(options.top_k, LARGEST_TOP_K), options.log_min_p, options.choice,
        options.seed % 2**64, options.top_p,
    )  # fmt: skip
    padded = stop_ids + [-1] * (MOST_STOP_IDS - len(stop_ids))
    spare = [0] * (WORDS - STOP_IDS - MOST_STOP_IDS)
    return [*struct.unpack("<12i", numbers), *padded, *spare]


def options_of(words: Sequence[int]) -> ChoiceOptions:
    """What `slot_words` wrote of the options."""
    packed = struct.pack("<8i", *words[INVERSE_TEMPERATURE:STOP_IDS])
    inverse_temperature, top_k, log_min_p, choice, seed, top_p = struct.unpack("<f i f i Q d", packed)
    return ChoiceOptions(inverse_temperature, top_k, top_p, log_min_p, seed, choice)
