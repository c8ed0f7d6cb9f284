"""Chunks of a prompt through a model, a layer at a time: memory that is made once, and what passes through it.

A chunk is up to thousands of consecutive rows of one slot. Between two layer steps others may use the device, but for
this memory and the slot, whose state is half moved until the last layer is through. Between two layers a chunk may be
set aside: what it needs again is copied out, and another one has the memory until it is taken back. Knows no request.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from strata.experts.feed import ExpertBatch, ExpertFeed, ExpertsAtHand
from strata.experts.staging import Staging
from strata.experts.streams import streams_of
from strata.kernels.attention_rows import RotationTables
from strata.kernels.read_streams import add_norm
from strata.kernels.residual_streams.additions import MixerRows, Nothing
from strata.models.device.description import DeviceModel, SparseMlp
from strata.models.device.launches import Launch
from strata.models.device.reading.layers import HEAD_ROWS, head_launches, layer_legs, logits_of, sparse_index
from strata.models.device.reading.mixers import ASK_STEP, history_of
from strata.models.device.reading.room import ReadRoom
from strata.models.device.reading.rows import FIELDS, ChunkRows, Run
from strata.models.device.reading.walk import NORM_STEP, NOTHING_KEPT, KeptStates, Leg, ReadWalk
from strata.models.device.state import DeviceState

GRID = 64  # of positions: chunks that are cut there give the same bits
RunLaunch = Callable[[Launch], None]


@dataclass(frozen=True)
class ChunkPlace:
    """Which rows a chunk has."""

    slot: int
    position: int
    count: int
    marks: tuple[int, ...] = ()  # rising rows of it, or its end, on the grid of positions: the state there is kept
    counts: bool = False  # whether the experts of its last rows are counted, into `ChunkMemory.asked`


@dataclass(frozen=True)
class LegAhead:
    """The next leg of a chunk; see `Leg`."""

    layer: int
    number: int
    sent_bytes: int = 0


class ChunkMemory:
    """What chunks of up to `capacity` rows pass through. One chunk has it at a time."""

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
        self._holder: Chunk | None = None

    def check(self, place: ChunkPlace) -> None:
        """Raise ValueError for rows that do not fit."""
        if not 0 < place.count <= self.capacity or place.position + place.count > self.state.cells:
            raise ValueError(
                f"{place.count} rows from {place.position} on: a chunk has 1 to {self.capacity} rows, a slot "
                f"{self.state.cells} cells"
            )

    def begin(self, place: ChunkPlace, token_ids: torch.Tensor, kept: KeptStates = NOTHING_KEPT) -> "Chunk":
        """A chunk whose first step is the next one. token_ids int64 [rows] in main memory.

        kept: where the state in front of each mark goes. Raises ValueError while another chunk has the memory, or for
        rows that do not fit.
        """
        self.check(place)
        walk = self._walk(place, kept)
        chunk = Chunk(self, walk, walk.chunk.host_words(token_ids))
        self.enter(chunk, 0, ())
        if place.counts and self.asked is not None:
            walk.asked = self.asked.zero_()
        return chunk

    def enter(self, chunk: "Chunk", layer: int, kept: Sequence[torch.Tensor]) -> None:
        """The chunk has the memory, in front of this layer. Raises ValueError while another one has it.

        kept: what it left there, like `lasting`; () if it comes for the first time.
        """
        if self._holder is not None:
            raise ValueError("a chunk is under way: it is finished, set aside or given up before another one begins")
        rows = chunk.rows
        self._staging.put(chunk.words, rows.words[:, : rows.count])
        if kept:
            for target, source in zip(self.lasting(rows.count), kept, strict=True):
                target.copy_(source[: target.shape[0]], non_blocking=True)
        places = rows.count * max((mlp.experts_per_token for mlp in self._sparse), default=0)
        try:
            self.feed.begin(places, sparse_index(self.model, layer))
        except BaseException:  # experts that cannot be read from files
            self.feed.end()
            raise
        self._holder = chunk

    def leave(self, *, comes_back: bool = False) -> None:
        """Nobody has the memory any more."""
        self._holder = None
        if comes_back:
            self.feed.pause()
        else:
            self.feed.end()

    def has(self, chunk: "Chunk") -> bool:
        """Whether it is this chunk that has the memory."""
        return self._holder is chunk

    def lasting(self, rows: int) -> list[torch.Tensor]:
        """What a chunk of so many rows needs again when it was set aside between two layers."""
        walk = self._walk(ChunkPlace(0, 0, rows), NOTHING_KEPT)
        parts = [walk.streams]
        if self.model.sizes.ngram_layers:
            parts.append(history_of(walk))
        return parts if self.asked is None else [*parts, self.asked]

    def launches(self, rows: int, feed: ExpertFeed, position: int = 0) -> Iterator[Launch]:
        """All that a chunk of so many rows launches in slot 0, and the head of its last row. Nothing is under way."""
        walk = self._walk(ChunkPlace(0, position, rows), NOTHING_KEPT)
        for index in range(len(self.model.layers)):
            for leg in layer_legs(walk, index, feed):
                yield from leg.launches
        if self.model.is_last:
            yield from head_launches(walk, Run(rows - 1, rows))

    def entries(self, rows: int) -> Iterator[Launch]:
        """What reads the streams first where a chunk of slot 0 goes on, in front of any layer.

        Nothing is to be added to them then, which takes other kernels than behind a layer. Nothing is under way.
        """
        for index in range(len(self.model.layers)):
            first = next(layer_legs(self._walk(ChunkPlace(0, 0, rows), NOTHING_KEPT), index, _NoExperts()))
            yield next(launch for launch in first.launches if launch.step.endswith(NORM_STEP))

    def _walk(self, place: ChunkPlace, kept: KeptStates) -> ReadWalk:
        return _walk_of(self.model, self.state, self.rotation, self.room, self.capacity, place, kept)


class Chunk:
    """Rows on their way through the layers; made by `ChunkMemory.begin`, ended by `end` in any case."""

    def __init__(self, memory: ChunkMemory, walk: ReadWalk, words: torch.Tensor) -> None:
        """words: what `ChunkRows.words` holds of it, in main memory."""
        self.words = words
        self._memory, self._walk = memory, walk
        self._layer = 0
        self._legs: Iterator[Leg] = iter(())  # of this layer, as far as they are taken
        self._leg: Leg | None = None  # the next one of a layer that has begun

    @property
    def rows(self) -> ChunkRows:
        """Which ones they are."""
        return self._walk.chunk

    @property
    def coming(self) -> LegAhead | None:
        """The next leg; None behind the last one."""
        if self._leg is not None:
            return LegAhead(self._leg.layer, self._leg.number, self._leg.sent_bytes)
        return None if self._layer == len(self._walk.model.layers) else LegAhead(self._layer, 0)

    @property
    def is_through(self) -> bool:
        """Whether all layers are launched."""
        return self.coming is None

    @property
    def is_between_layers(self) -> bool:
        """Whether it may be set aside."""
        return self._leg is None

    @property
    def has_memory(self) -> bool:
        """Whether it may go on; not if it was set aside, and not behind `end`."""
        return self._memory.has(self)

    def step(self, run: RunLaunch) -> None:
        """Launch the next leg and go on to the one behind it."""
        self.launch(run)
        self.go_on()

    def launch(self, run: RunLaunch) -> None:
        """Launch the next leg; `go_on` follows."""
        assert self.has_memory and not self.is_through, "who has the memory goes on, up to the last leg"
        if self._leg is None:
            self._legs = layer_legs(self._walk, self._layer, self._memory.feed)
            self._leg = next(self._legs)
        with self._answered(self._leg):
            for launch in self._leg.launches:
                run(launch)

    def go_on(self) -> None:
        """The leg that was launched is done with: the next one comes. Waits for it where the routing must be known."""
        self._leg = next(self._legs, None)
        if self._leg is None:
            self._layer += 1

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

    def whole_streams(self) -> torch.Tensor:
        """Between two layers: the residual streams [rows, streams * hidden] with all that was to be added to them.

        A layer that adds first and one that finds it added give the same bits.
        """
        walk = self._walk
        if not isinstance(walk.addition, Nothing):
            model = walk.model
            normed = walk.room.take("normed", self.rows.count, model.stream_width, dtype=torch.bfloat16)
            scale = model.layers[0].mixer_read.norm_scale  # whose norm nobody reads
            add_norm(walk.streams, walk.addition, scale, model.eps, model.streams, normed)
            walk.addition = Nothing()
        return walk.streams

    def is_finite(self) -> torch.Tensor:
        """Behind the last layer: bool [] on the device, whether its last row left numbers behind."""
        left = self._walk.streams[-1]
        if isinstance(self._walk.addition, MixerRows):
            left = torch.cat((left, self._walk.addition.output[-1]))
        return torch.isfinite(left).all()

    def set_aside(self, room: Sequence[torch.Tensor]) -> None:
        """Between two layers: another chunk may have the memory until this one is taken back.

        room: tensors like `ChunkMemory.lasting` of this many rows or more.
        """
        self.whole_streams()
        for source, target in zip(self._memory.lasting(self.rows.count), room, strict=True):
            target[: source.shape[0]].copy_(source, non_blocking=True)
        self._memory.leave(comes_back=True)

    def take_back(self, room: Sequence[torch.Tensor]) -> None:
        """Go on where it was set aside, into `room`. Raises ValueError while another chunk has the memory."""
        self._memory.enter(self, self._layer, room)

    def end(self) -> None:
        """Another chunk may begin. Between layers that gives this one up: the slot's state means nothing."""
        if self.has_memory:
            self._memory.leave()


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
    if model.is_last:
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
