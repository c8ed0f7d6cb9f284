"""What one stage holds of parked conversations, and the copies between its slots and main memory.

Of a conversation first what does not grow, then its cells: of every tensor and layer the rows side by side, in
sixty-fours. What does not grow is copied at once; cells a part at a time, so that windows of other slots come in
between, and the host waits for the part before. All of it in the order of the stage's launches. Keys and values that
lie in main memory anyhow are copied there by the card. Knows slots by index and conversations by key.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from strata.engine.parked_room import ParkedBytes, ParkedRoom
from strata.engine.steps import ParkingSpace
from strata.kernels.cell_pages import COPY_STEP, copy_cells
from strata.models.device.state import DeviceState

PART_BYTES = 256 << 20  # of cells that are copied without a break: 5 ms over PCIe 5, 10 over PCIe 4
GRID = 64  # rows: whole COPY_STEPs of every tensor


@dataclass(frozen=True)
class _Held:
    """A conversation in main memory."""

    rows: int  # a multiple of GRID
    place: ParkedBytes


class ParkedCells:
    """Of one stage. A key is free until something is parked under it, and again once that is dropped."""

    def __init__(self, state: DeviceState, room: ParkedRoom) -> None:
        self._state, self._room = state, room
        self._held: dict[int, _Held] = {}
        self._moves: deque[tuple[torch.Tensor, torch.Tensor]] = deque()  # from, to: uint8 of one length
        self._last_part = torch.cuda.Event() if state.delta.is_cuda else None
        fixed = sum(-(-part.nbytes // COPY_STEP) * COPY_STEP for part in _fixed(state, 0))
        per_token = sum(part.nbytes for part in _cells(state, 0, GRID)) / GRID
        self.space = ParkingSpace(room.size, fixed, per_token)

    def park(self, slot: int, key: int, rows: int) -> None:
        """Copy the first `rows` committed rows of a slot; there is room for them.

        The slot's cells may be written again once nothing `moves_on`, all else at once.
        """
        self.finish()
        taken = -(-rows // GRID) * GRID
        place = self._room.take(self.space.size(rows))
        assert place is not None, "whoever parks counts what there is room for"
        self._held[key] = _Held(taken, place)
        for found, wanted in self._pairs(_fixed(self._state, slot), place, 0):
            self._copy(found, wanted)
        self._moves.extend(self._pairs(_cells(self._state, slot, taken), place, self.space.fixed))

    def bring(self, key: int, slot: int, rows: int, *, is_whole: bool) -> None:
        """Copy the first `rows` rows into a slot: their cells, and if that is all of them what does not grow.

        Nobody computes the slot's rows until nothing `moves_on`.
        """
        self.finish()
        held, taken = self._held[key], -(-rows // GRID) * GRID
        if self._state.pools is not None:
            self._state.pools.forget(slot)
        if is_whole:
            for wanted, found in self._pairs(_fixed(self._state, slot), held.place, 0):
                self._copy(found, wanted)
        start = self.space.fixed
        whole = _cells(self._state, slot, held.rows)
        for wanted, room in zip(_cells(self._state, slot, taken), whole, strict=True):
            self._moves.extend((found, into) for into, found in self._pairs([wanted], held.place, start))
            start += len(room)

    def drop(self, key: int) -> None:
        """It is given up; what waits for its turn copies it all the same, before another one gets its bytes."""
        self._held.pop(key).place.release()

    def moves_on(self) -> bool:
        """Launch the next part of what is to be copied, when the part before has been; False: nothing is."""
        if not self._moves:
            return False
        if self._last_part is not None:
            self._last_part.synchronize()
        left = PART_BYTES
        while self._moves and left > 0:
            found, wanted = self._moves.popleft()
            if len(found) > left:
                cut = -(-left // COPY_STEP) * COPY_STEP
                self._moves.appendleft((found[cut:], wanted[cut:]))
                found, wanted = found[:cut], wanted[:cut]
            left -= len(found)
            self._copy(found, wanted)
        if self._last_part is not None:
            self._last_part.record(torch.cuda.current_stream(self._state.delta.device))
        return True

    def finish(self) -> None:
        """Launch all that is to be copied."""
        while self.moves_on():
            pass

    def _pairs(
        self, slabs: Sequence[torch.Tensor], place: ParkedBytes, start: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Slabs of a slot beside where they lie in main memory, from byte `start` on; cut where ranges end."""
        for slab in slabs:
            rest = slab
            for view in place.views(start, start + len(slab)):
                yield rest[: len(view)], view
                rest = rest[len(view) :]
            start += -(-len(slab) // COPY_STEP) * COPY_STEP

    def _copy(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        device = self._state.delta.device
        if device.type == "cpu" or found.is_cuda or wanted.is_cuda:
            wanted.copy_(found, non_blocking=True)
        elif self._room.is_pinned:
            copy_cells([found], [wanted], device)
        else:
            torch.cuda.current_stream(device).synchronize()
            wanted.copy_(found)


def _fixed(state: DeviceState, slot: int) -> list[torch.Tensor]:
    """What does not grow: uint8, a layer of each tensor after another."""
    layers = [layer for whole in (state.delta, state.conv_tail, state.ngram_tail) for layer in whole[:, slot]]
    return [_bytes(part) for part in (*layers, state.history[slot]) if part.numel()]


def _cells(state: DeviceState, slot: int, rows: int) -> list[torch.Tensor]:
    """The first `rows` cells, a multiple of GRID: uint8, a layer of each tensor after another."""
    heads = (*state.keys.tensors, *state.values.tensors, state.raw)
    layers = [layer for whole in heads for layer in whole[:, slot, :rows]]
    layers += list(state.pooled[:, slot, : rows // state.sizes.ratio])
    return [_bytes(part) for part in layers if part.numel()]


def _bytes(part: torch.Tensor) -> torch.Tensor:
    return part.view(-1).view(torch.uint8)
