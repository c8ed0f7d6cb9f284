"""Chunks of a prompt through a model, a layer at a time: memory that is made once, and what passes through it.

A chunk is up to thousands of consecutive rows of one slot. Between two layer steps others may use the device, but for
this memory and the slot, whose state is half moved until the last layer is through. Knows no request.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from strata.experts.streaming import ExpertBatch, ExpertFeed
from strata.kernels.attention_rows import RotationTables
from strata.kernels.ngram_rows import AskedTable
from strata.models.device.description import DeviceModel, SparseMlp
from strata.models.device.launches import Launch
from strata.models.device.reading.layers import (
    HEAD_ROWS,
    embed_launches,
    head_launches,
    history_launches,
    layer_launches,
    logits_of,
)
from strata.models.device.reading.room import ReadRoom
from strata.models.device.reading.rows import ChunkRows, Run
from strata.models.device.reading.walk import KeptState, ReadWalk
from strata.models.device.state import DeviceState

GRID = 64  # of positions: chunks that are cut there give the same bits
RunLaunch = Callable[[Launch], None]


@dataclass(frozen=True)
class ChunkPlace:
    """Which rows a chunk has."""

    slot: int
    position: int
    count: int
    mark: int | None = None  # a row of it on the grid of positions, in front of which the state is kept


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
        self._under_way: Chunk | None = None

    def begin(self, place: ChunkPlace, token_ids: torch.Tensor, kept: KeptState | None = None) -> "Chunk":
        """A chunk whose first step is the next one. token_ids int64 [rows] in main memory.

        kept: where the state in front of the mark goes. Raises ValueError while another chunk is under way, or for rows
        that do not fit.
        """
        if self._under_way is not None:
            raise ValueError("a chunk is under way: it is finished or given up before the next one begins")
        if not 0 < place.count <= self.capacity or place.position + place.count > self.state.cells:
            raise ValueError(
                f"{place.count} rows from {place.position} on: a chunk has 1 to {self.capacity} rows, a slot "
                f"{self.state.cells} cells"
            )
        walk = self._walk(place, kept)
        _put(walk.chunk.host_words(token_ids), walk.chunk.words[:, : place.count])
        sparse = [layer.mlp for layer in self.model.layers if isinstance(layer.mlp, SparseMlp)]
        try:
            self.feed.begin(place.count * max((mlp.experts_per_token for mlp in sparse), default=0))
        except BaseException:  # experts that cannot be read from files
            self.feed.end()
            raise
        self._under_way = Chunk(walk, self.feed, self._end)
        return self._under_way

    def launches(self, rows: int, feed: ExpertFeed, position: int = 0) -> Iterator[Launch]:
        """All that a chunk of so many rows launches in slot 0, and the head of its last row. Nothing is under way."""
        walk = self._walk(ChunkPlace(0, position, rows), None)
        yield from embed_launches(walk)
        for index in range(len(self.model.layers)):
            yield from layer_launches(walk, index, feed)
        yield from history_launches(walk)
        yield from head_launches(walk, Run(rows - 1, rows))

    def _walk(self, place: ChunkPlace, kept: KeptState | None) -> ReadWalk:
        return _walk_of(self.model, self.state, self.rotation, self.room, self.capacity, place, kept)

    def _end(self) -> None:
        self._under_way = None
        self.feed.end()


class Chunk:
    """Rows on their way through the layers; made by `ChunkMemory.begin`, ended by `end` in any case."""

    def __init__(self, walk: ReadWalk, feed: ExpertFeed, on_end: Callable[[], None]) -> None:
        self._walk, self._feed, self._on_end = walk, feed, on_end
        self._next = 0
        self._has_ended = False

    @property
    def is_through(self) -> bool:
        """Whether all layers are launched."""
        return self._next == len(self._walk.model.layers)

    def step(self, run: RunLaunch) -> None:
        """Launch the next layer; the first one with the embedding, the last one with what ends the chunk's state."""
        if self._next == 0:
            _run_all(embed_launches(self._walk), run)
        with self._answered():
            _run_all(layer_launches(self._walk, self._next, self._feed), run)
        self._next += 1
        if self.is_through:
            _run_all(history_launches(self._walk), run)

    def _answered(self) -> AbstractContextManager[None]:
        """Around the next layer's launches: whoever reads its n-gram table from files, if anybody does, is awake."""
        model = self._walk.model
        ngram = model.layers[self._next].ngram
        if model.tables is None or ngram is None or not isinstance(ngram.table, AskedTable):
            return nullcontext()
        return model.tables.asked_by_launches()

    def logits(self, first: int, run: RunLaunch) -> Iterator[torch.Tensor]:
        """Of the rows from `first` on, float32 [up to HEAD_ROWS, vocabulary] on the device until more are asked for.

        Once, behind the last layer.
        """
        for rows in Run(first, self._walk.chunk.count).cut(HEAD_ROWS):
            _run_all(head_launches(self._walk, rows), run)
            yield logits_of(self._walk, rows)

    def end(self) -> None:
        """Another chunk may begin. Between layers that gives this one up: the slot's state means nothing."""
        if not self._has_ended:
            self._has_ended = True
            self._on_end()


class _NoExperts:
    """See `ExpertFeed`: for adding up memory."""

    asks_for_routing = False

    def begin(self, places: int) -> None:
        """See `ExpertFeed`."""

    def batches(self, layer: int, needed: Collection[int] | None) -> Iterator[ExpertBatch]:
        """See `ExpertFeed`."""
        return iter(())

    def end(self) -> None:
        """See `ExpertFeed`."""


def chunk_room(model: DeviceModel, state: DeviceState, rotation: RotationTables, capacity: int) -> ReadRoom:
    """The memory that chunks need, added up and not taken."""
    room = ReadRoom(model.device)
    walk = _walk_of(model, state, rotation, room, capacity, ChunkPlace(0, 0, capacity), None)
    for index in range(len(model.layers)):
        list(layer_launches(walk, index, _NoExperts()))
    list(embed_launches(walk))
    list(head_launches(walk, Run(0, min(HEAD_ROWS, capacity))))
    return room


def _walk_of(
    model: DeviceModel,
    state: DeviceState,
    rotation: RotationTables,
    room: ReadRoom,
    capacity: int,
    place: ChunkPlace,
    kept: KeptState | None,
) -> ReadWalk:
    words = ChunkRows.empty(room, capacity)
    rows = ChunkRows(place.slot, place.position, place.count, place.mark, words)
    return ReadWalk(model, state, rotation, room, rows, kept)


def _run_all(launches: Iterable[Launch], run: RunLaunch) -> None:
    for launch in launches:
        run(launch)


def _put(values: torch.Tensor, target: torch.Tensor) -> None:
    """Copy to the device behind what was launched; the staging is the allocator's until it is done."""
    is_gpu = target.is_cuda
    target.copy_(values.pin_memory() if is_gpu else values, non_blocking=is_gpu)
