"""Chunks of a prompt through a model, a layer at a time: memory that is made once, and what passes through it.

A chunk is up to thousands of consecutive rows of one slot. Between two layer steps others may use the device, but for
this memory and the slot, whose state is half moved until the last layer is through. Knows no request.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from strata.experts.feed import ExpertBatch, ExpertFeed, ExpertsAtHand
from strata.experts.staging import Staging
from strata.experts.streams import streams_of
from strata.kernels.attention_rows import RotationTables
from strata.models.device.description import DeviceModel, SparseMlp
from strata.models.device.launches import Launch
from strata.models.device.reading.layers import HEAD_ROWS, head_launches, layer_legs, logits_of
from strata.models.device.reading.mixers import ASK_STEP
from strata.models.device.reading.room import ReadRoom
from strata.models.device.reading.rows import FIELDS, ChunkRows, Run
from strata.models.device.reading.walk import NOTHING_KEPT, KeptStates, Leg, ReadWalk
from strata.models.device.state import DeviceState

GRID = 64  # of positions: chunks that are cut there give the same bits
RunLaunch = Callable[[Launch], None]


@dataclass(frozen=True)
class ChunkPlace:
    """Which rows a chunk has."""

    slot: int
    position: int
    count: int
    marks: tuple[int, ...] = ()  # rising rows of it on the grid of positions, in front of which the state is kept
    counts: bool = False  # whether the experts of its last rows are counted, into `ChunkMemory.asked`


class ChunkMemory:
    """What chunks of up to `capacity` rows pass through. One chunk at a time."""

    def __init__(
        self, model: DeviceModel, state: DeviceState, rotation: RotationTables, feed: ExpertFeed, capacity: int
    ) -> None:
        """Takes the memory. Raises ValueError for a capacity off the grid, torch's error if there is no memory."""
        if capacity < GRID or capacity % GRID:
            raise ValueError(f"a chunk must have a positive multiple of {GRID} rows, not {capacity}")
        self.model, self.state, self.rotation, self.feed = model, state, rotation, feed
        self.capacity = capacity
        self.room = chunk_room(model, state, rotation, capacity)
        self.room.make()
        self._staging = Staging(FIELDS * capacity * torch.int32.itemsize, model.device, streams_of(model.device))
        self._sparse = [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMlp)]
        self.asked: torch.Tensor | None = None  # int32 [layers with experts, experts]; None: nobody wants to know
        if model.tiers is not None:
            shape = len(self._sparse), max(mlp.router.shape[0] for mlp in self._sparse)
            self.asked = torch.zeros(shape, dtype=torch.int32, device=model.device)
        self._under_way: Chunk | None = None

    def begin(self, place: ChunkPlace, token_ids: torch.Tensor, kept: KeptStates = NOTHING_KEPT) -> "Chunk":
        """A chunk whose first step is the next one. token_ids int64 [rows] in main memory.

        kept: where the state in front of each mark goes. Raises ValueError while another chunk is under way, or for
        rows that do not fit.
        """
        if self._under_way is not None:
            raise ValueError("a chunk is under way: it is finished or given up before the next one begins")
        if not 0 < place.count <= self.capacity or place.position + place.count > self.state.cells:
            raise ValueError(
                f"{place.count} rows from {place.position} on: a chunk has 1 to {self.capacity} rows, a slot "
                f"{self.state.cells} cells"
            )
        walk = self._walk(place, kept)
        if place.counts and self.asked is not None:
            walk.asked = self.asked.zero_()
        self._staging.put(walk.chunk.host_words(token_ids), walk.chunk.words[:, : place.count])
        try:
            self.feed.begin(place.count * max((mlp.experts_per_token for mlp in self._sparse), default=0))
        except BaseException:  # experts that cannot be read from files
            self.feed.end()
            raise
        self._under_way = Chunk(walk, self.feed, self._end)
        return self._under_way

    def launches(self, rows: int, feed: ExpertFeed, position: int = 0) -> Iterator[Launch]:
        """All that a chunk of so many rows launches in slot 0, and the head of its last row. Nothing is under way."""
        walk = self._walk(ChunkPlace(0, position, rows), NOTHING_KEPT)
        for index in range(len(self.model.layers)):
            for leg in layer_legs(walk, index, feed):
                yield from leg.launches
        yield from head_launches(walk, Run(rows - 1, rows))

    def _walk(self, place: ChunkPlace, kept: KeptStates) -> ReadWalk:
        return _walk_of(self.model, self.state, self.rotation, self.room, self.capacity, place, kept)

    def _end(self) -> None:
        self._under_way = None
        self.feed.end()


class Chunk:
    """Rows on their way through the layers; made by `ChunkMemory.begin`, ended by `end` in any case."""

    def __init__(self, walk: ReadWalk, feed: ExpertFeed, on_end: Callable[[], None]) -> None:
        self._walk, self._on_end = walk, on_end
        layers = range(len(walk.model.layers))
        self._legs = (leg for index in layers for leg in layer_legs(walk, index, feed))
        self.coming = next(self._legs, None)  # the next leg; None behind the last one
        self._has_ended = False

    @property
    def is_through(self) -> bool:
        """Whether all layers are launched."""
        return self.coming is None

    def step(self, run: RunLaunch) -> None:
        """Launch the next leg and go on to the one behind it."""
        self.launch(run)
        self.go_on()

    def launch(self, run: RunLaunch) -> None:
        """Launch the next leg; `go_on` follows."""
        leg = self.coming
        assert leg is not None, "nothing follows the last leg"
        with self._answered(leg):
            for launch in leg.launches:
                run(launch)

    def go_on(self) -> None:
        """The leg that was launched is done with: the next one comes. Waits for it where the routing must be known."""
        self.coming = next(self._legs, None)

    def _answered(self, leg: Leg) -> AbstractContextManager[None]:
        """Around a leg's launches: whoever reads its n-gram table from files, if anybody does, is awake."""
        tables = self._walk.model.tables
        asks = any(launch.step == ASK_STEP for launch in leg.launches)
        return nullcontext() if tables is None or not asks else tables.asked_by_launches()

    def logits(self, first: int, run: RunLaunch) -> Iterator[torch.Tensor]:
        """Of the rows from `first` on, float32 [up to HEAD_ROWS, vocabulary] on the device until more are asked for.

        Once, behind the last layer.
        """
        for rows in Run(first, self._walk.chunk.count).cut(HEAD_ROWS):
            for launch in head_launches(self._walk, rows):
                run(launch)
            yield logits_of(self._walk, rows)

    def end(self) -> None:
        """Another chunk may begin. Between layers that gives this one up: the slot's state means nothing."""
        if not self._has_ended:
            self._has_ended = True
            self._on_end()


class _NoExperts(ExpertsAtHand):
    """For adding up memory."""

    def batches(self, layer: int, needed: Collection[int] | None) -> Sequence[ExpertBatch]:
        """See `ExpertFeed`."""
        return ()


def chunk_room(model: DeviceModel, state: DeviceState, rotation: RotationTables, capacity: int) -> ReadRoom:
    """The memory that chunks need, added up and not taken."""
    room = ReadRoom(model.device)
    walk = _walk_of(model, state, rotation, room, capacity, ChunkPlace(0, 0, capacity), NOTHING_KEPT)
    for index in range(len(model.layers)):
        list(layer_legs(walk, index, _NoExperts()))
    head_launches(walk, Run(0, min(HEAD_ROWS, capacity)))
    return room


def _walk_of(
    model: DeviceModel,
    state: DeviceState,
    rotation: RotationTables,
    room: ReadRoom,
    capacity: int,
    place: ChunkPlace,
    kept: KeptStates,
) -> ReadWalk:
    words = ChunkRows.empty(room, capacity)
    rows = ChunkRows(place.slot, place.position, place.count, place.marks, words)
    return ReadWalk(model, state, rotation, room, rows, kept)
