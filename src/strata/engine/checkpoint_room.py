"""Main memory for checkpoints of a card's slots: pieces of one size, made once, pinned, used again and again.

Knows the shapes of a piece and who has it: whoever holds the tensors. A piece is written and read by copies that are
launched in order, so one that is free may be given away while a copy out of it is still to run. Memory that is pinned
only when a checkpoint is taken would have the card wait for the system each time.
"""

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.errors import ModelError
from strata.experts.host_memory import Pinning, anonymous_memory

ALIGNED_BYTES = 256  # where a part of a piece begins


@dataclass(frozen=True)
class PartShape:
    """One tensor of every piece."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes, with what lies between it and the next one."""
        return -(-math.prod(self.shape) * self.dtype.itemsize // ALIGNED_BYTES) * ALIGNED_BYTES


class CheckpointRoom:
    """Pieces with the same parts. `notice`: a sentence for the user if memory is not as it was meant to be."""

    def __init__(self, parts: Sequence[PartShape], pieces: int, pinning: Pinning | None) -> None:
        """Takes the memory of so many pieces; there are none if the system gives none. pinning: None for no card."""
        self._parts = tuple(parts)
        self.piece_bytes = sum(part.size for part in parts)
        self.notice: str | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._free: list[int] = []
        size = pieces * self.piece_bytes
        try:
            self._memory = anonymous_memory(size)
        except ModelError:
            self.notice = f"the system does not give {_gib(size)} for checkpoints: only the last ones are kept"
            return
        self._free = list(reversed(range(pieces)))
        if pinning is not None and size:
            self._pin(pinning)

    @property
    def free_pieces(self) -> int:
        """How many nobody has."""
        return len(self._free)

    def take(self, owner: object, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The parts of a piece that is `owner`'s as long as that lives; other memory if no piece is free.

        like: tensors of the same shapes, whose device will write them.
        """
        if not self._free:
            return [torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda) for part in like]
        index = self._free.pop()
        weakref.finalize(owner, self._give_back, index).atexit = False  # and holds this room until then
        rest, tensors = self._memory[index * self.piece_bytes : (index + 1) * self.piece_bytes], []
        for part in self._parts:
            used = math.prod(part.shape) * part.dtype.itemsize
            tensors.append(rest[:used].view(part.dtype).view(part.shape))
            rest = rest[part.size :]
        return tensors

    def _give_back(self, index: int) -> None:
        self._free.append(index)

    def _pin(self, pinning: Pinning) -> None:
        address, size = self._memory.data_ptr(), self._memory.numel()
        problem = pinning.pin(address, size)
        if problem is None:
            weakref.finalize(self, pinning.unpin, address).atexit = False
        else:
            self.notice = (
                f"the system does not pin the {_gib(size)} for checkpoints ({problem}): the card waits for each one; a "
                "higher limit of locked memory helps (`ulimit -l unlimited`, for a container `--ulimit memlock=-1`)"
            )


def no_room(parts: Sequence[PartShape]) -> CheckpointRoom:
    """Without a piece: every checkpoint has memory of its own."""
    return CheckpointRoom(parts, 0, None)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
