"""Who packs published blocks into storage codes: threads of the C++ library, into memory that somebody gives.

Knows memory and threads; knows no format.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from strata.native.pool import Pool
from strata.quant.layout import ALIGNMENT, round_up


def fresh_memory(size: int) -> torch.Tensor:
    """`size` bytes that nobody else has."""
    return torch.empty(size, dtype=torch.uint8)


@dataclass(frozen=True)
class Packer:
    """The library's threads, and what gives `size` bytes (uint8, at a multiple of 64) for each packed matrix."""

    pool: Pool
    memory: Callable[[int], torch.Tensor] = fresh_memory


class Scratch:
    """Memory for what soon lies elsewhere, used again and again: fresh memory costs a fault for every page of it."""

    def __init__(self) -> None:
        self._memory = fresh_memory(0)
        self._used = 0

    def take(self, size: int) -> torch.Tensor:
        """`size` bytes until the next `reset`."""
        room = round_up(size, ALIGNMENT)
        if self._used == 0 and room > self._memory.numel():
            self._memory = fresh_memory(room)
        begin, self._used = self._used, self._used + room
        return self._memory[begin : begin + size] if self._used <= self._memory.numel() else fresh_memory(size)

    def reset(self) -> None:
        """Nobody needs what was taken any more."""
        if self._used > self._memory.numel():
            self._memory = fresh_memory(self._used)
        self._used = 0
