"""Prompts read in chunks over cache sizes, chunk sizes and lengths, beside what copying to the card allows.

Knows the order of what is run and when a speed may be shown: only if every size gives the same logits, bit for bit.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from strata.bench.read_profile import PartTime, profile_chunk
from strata.bench.spread import Spread
from strata.bench.tier_memory import TierMemory, seats_of
from strata.engine.read_pace import ReadSteps
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import StageModel
from strata.errors import EngineError
from strata.experts.streaming import RING_TILES, TILE_EXPERTS, StreamedExperts, ring_bytes
from strata.experts.streams import streams_of
from strata.models.base import Segment
from strata.models.device.description import DeviceModel
from strata.models.device.reading.chunks import ChunkMemory
from strata.quant.cell_codes import CellKind
from strata.types import ProgressCallback

COPY_ROUNDS = 3


@dataclass(frozen=True)
class ReadPlan:
    """What is measured of a model that is there."""

    caches: tuple[int, ...] = (0, 100)  # percent of each layer's experts that have a seat
    chunks: tuple[int, ...] = (8192,)  # rows
    tokens: tuple[int, ...] = (8192, 32_768)
    rounds: int = 3
    with_profile: bool = False
    seed: int = 0
    kv_kind: CellKind = CellKind.BF16
    steps: tuple[str, ...] = ("layer",)  # or tile: between which others could run


@dataclass(frozen=True)
class ReadSpeed:
    """Prompts of one length, read in chunks of one size with one cache."""

    cache: int
    chunk: int
    tokens: int
    step: str
    seconds: Spread
    layer_ms: float  # of one layer of one chunk, on average
    slow_ms: float  # from one step to the next, as the host sees it: 99 of 100 take no longer
    longest_ms: float  # the longest of all of them
    sent_bytes: int  # of experts, in one read
    copy_ms: float | None  # for these alone; None where there is no card
    chunk_bytes: int  # what chunks take
    peak_bytes: int | None  # of the card, all in all
    beside_bytes: int | None  # of these what is beside weights, seats and slots, which are there whatever is read
    parts: tuple[PartTime, ...] = ()  # of the last chunk

    @property
    def tokens_per_second(self) -> float:
        """By the median."""
        return self.tokens / self.seconds.median

    @property
    def copy_share(self) -> float | None:
        """Copying alone, of what the read took: 1 is as fast as the link allows."""
        return None if self.copy_ms is None else self.copy_ms / (1e3 * self.seconds.median)


@dataclass
class ReadBench:
    """A model whose dense part is on the device, and its experts in main memory."""

    model: DeviceModel
    memory: TierMemory
    plan: ReadPlan
    _logits: dict[int, torch.Tensor] = field(default_factory=dict)  # by length: of the last row

    def measure(self, on_progress: ProgressCallback | None = None) -> list[ReadSpeed]:
        """All cache sizes in order. Raises EngineError if sizes give different logits."""
        rate = self.copy_bytes_per_second()
        gc.collect()
        gc.freeze()  # as in the engine's process: looking through all of torch for garbage takes 70 ms
        runs = [(cache, chunk) for cache in self.plan.caches for chunk in self.plan.chunks]
        speeds = []
        for done, (cache, chunk) in enumerate(runs):
            if on_progress is not None:
                on_progress(f"reading with a cache of {cache} %", done, len(runs))
            for step in self.plan.steps:
                speeds += self._speeds(cache, chunk, step, rate)
        if on_progress is not None:
            on_progress("reading", len(runs), len(runs))
        return speeds

    def _speeds(self, cache: int, chunk: int, step: str, rate: float | None) -> list[ReadSpeed]:
        """Of one reader, which nobody holds any more when this returns."""
        with self.reader(cache, chunk, step) as (model, feed):
            return [self._speed(model, feed, (cache, step), tokens, rate) for tokens in self.plan.tokens]

    def copy_bytes_per_second(self) -> float | None:
        """Of tiles of experts, one after another into the card's memory; None where there is no card."""
        if self.memory.device.type != "cuda":
            return None
        blobs = self.memory.blobs(0)
        tiles = blobs.split(TILE_EXPERTS)
        room = [torch.empty_like(tiles[0], device=self.memory.device) for _ in range(RING_TILES)]
        taken = []
        for _ in range(COPY_ROUNDS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for number, tile in enumerate(tiles):
                room[number % RING_TILES][: len(tile)].copy_(tile, non_blocking=True)
            end.record()
            torch.cuda.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        return blobs.numel() / min(taken[1:])

    @contextmanager
    def reader(self, cache: int, chunk: int, step: str = "layer") -> Iterator[tuple[StageModel, StreamedExperts]]:
        """A model that reads with such a cache, with room for the longest prompt, and what sends it experts.

        Whoever held the one before holds it no more.
        """
        device = self.memory.device
        if device.type == "cuda":
            torch.cuda.empty_cache()
        heat = np.zeros((len(self.memory.layers), self.memory.experts), np.int64)
        store = self.memory.store(seats_of(heat, cache))
        feed = StreamedExperts(store, _Still(), streams_of(device), device)
        stage = Stage(self.model, StageSizes(1, max(self.plan.tokens), kv_kind=self.plan.kv_kind), (1,))
        chunks = ChunkMemory(self.model, stage.state, stage.rotation, feed, chunk)
        try:
            yield StageModel(stage, stage.run, None, 0, chunks, ReadSteps(by_tiles=step == "tile")), feed
        finally:
            stage.wait()

    def _speed(
        self, model: StageModel, feed: StreamedExperts, run: tuple[int, str], tokens: int, rate: float | None
    ) -> ReadSpeed:
        """run: cache and step."""
        assert model.chunks is not None
        text = torch.randint(model.vocabulary_size, (tokens,), generator=torch.Generator().manual_seed(self.plan.seed))
        is_gpu, taken, gaps = model.stage.device.type == "cuda", list[float](), list[float]()
        rows, own, resting = model.chunks.capacity, model.chunks.room.total_bytes + self._ring_bytes(), 0
        if is_gpu:
            torch.cuda.reset_peak_memory_stats()
            resting = torch.cuda.memory_allocated() - own
        for number in range(self.plan.rounds + 1):  # the first one warms up
            before = feed.sent_bytes
            seconds, between_steps = self._read(model, text)
            sent = feed.sent_bytes - before
            if number:
                taken.append(seconds)
                gaps += between_steps
        pieces = -(-tokens // rows)
        spread = Spread.of(taken)
        peak = torch.cuda.max_memory_allocated() if is_gpu else None
        return ReadSpeed(
            run[0],
            rows,
            tokens,
            run[1],
            spread,
            1e3 * spread.median / pieces / len(self.model.layers),
            1e3 * float(np.quantile(gaps, 0.99)),
            1e3 * max(gaps),
            sent,
            None if rate is None else 1e3 * sent / rate,
            model.chunks.room.total_bytes,
            peak,
            None if peak is None else peak - resting,
            profile_chunk(model.chunks, text[-rows:]) if self.plan.with_profile else (),
        )

    def _ring_bytes(self) -> int:
        return ring_bytes(self.memory.layers[0].layout.total_bytes, self.memory.experts)

    def _read(self, model: StageModel, text: torch.Tensor) -> tuple[float, list[float]]:
        """Seconds of one prompt, and between its steps. Raises EngineError for other logits than before."""
        state = model.new_state()
        begin = last = time.perf_counter()
        gaps, logits = list[float](), torch.empty(0)
        for piece in text.split(model.chunk_rows):
            reading = model.begin_read(Segment(state, piece))
            try:
                is_through = False
                while not is_through:
                    is_through = reading.advance()
                    now = time.perf_counter()
                    gaps.append(now - last)
                    last = now
                logits = reading.finish().logits
            finally:
                reading.cancel()
        taken = time.perf_counter() - begin
        model.release(state)
        known = self._logits.setdefault(len(text), logits)
        if not torch.equal(known, logits):
            raise EngineError(
                f"the logits behind {len(text):,} tokens differ from those of another cache, chunk size or round by up "
                f"to {float((known - logits).abs().max()):.2e}: no speed is shown for wrong results"
            )
        return taken, gaps


class _Still:
    """See `SeatHolder`: nobody changes seats here."""

    def hold_seats(self) -> None:
        """See `SeatHolder`."""

    def release_seats(self) -> None:
        """See `SeatHolder`."""
