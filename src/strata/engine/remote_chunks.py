"""A chunk of a prompt on a stage that reads are led to by another process, and one layer of it at a time.

Knows the memory of one stage; which chunk comes, and when it goes on, is the leader's matter (`remote_reads.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from strata.engine.hand_off import HandOff
from strata.engine.local_stage import on_device
from strata.engine.slot_keeper import Point, StateKeeper
from strata.engine.stage import Stage
from strata.engine.stage_calls import Answer, ChunkBegins
from strata.models.device.launches import Launch
from strata.models.device.reading.chunks import Chunk, ChunkMemory, ChunkPlace
from strata.models.device.reading.walk import KeptState


@dataclass
class _Passing:
    """The chunk that has the memory."""

    chunk: Chunk
    first_logit_row: int
    counts: bool
    heads: Iterator[torch.Tensor] | None = None
    rows_done: int = 0  # of those whose logits are wanted


class ServedChunks:
    """One chunk at a time. What is launched has ended when a step returns."""

    def __init__(self, stage: Stage, memory: ChunkMemory, keeper: StateKeeper, ways: Mapping[int, HandOff]) -> None:
        self._stage, self._memory, self._keeper, self._ways = stage, memory, keeper, ways
        self._passing: _Passing | None = None

    def begin(self, call: ChunkBegins) -> None:
        """The chunk comes in. Raises ValueError beside another one."""
        kept = {int(row): KeptState(*self._keeper.parts(Point(number))) for row, number in call.points.items()}
        place = ChunkPlace(call.slot, call.position, len(call.token_ids), tuple(kept), call.counts)
        with on_device(self._stage.device):
            chunk = self._memory.begin(place, torch.tensor(call.token_ids, dtype=torch.int64), kept)
            self._passing = _Passing(chunk, call.first_logit_row, call.counts)
            self._ways[call.way].receive([chunk.whole_streams()])

    def step(self) -> Answer:
        """A layer, or behind the last one the logits of some rows: count is 1 if nothing is left to be done."""
        passing = self._passing
        assert passing is not None, "a chunk has begun"
        with on_device(self._stage.device):
            if not passing.chunk.is_through:
                run_layer(passing.chunk, self._stage)
                return Answer(count=int(passing.chunk.is_through and self._wanted(passing) == 0))
            return self._head(passing)

    def go_on(self, way: int) -> None:
        """Give the streams to the next stage."""
        passing = self._passing
        assert passing is not None and passing.chunk.is_through, "a chunk is through"
        with on_device(self._stage.device):
            give_streams(passing.chunk, self._ways[way])
        self.end()

    def end(self) -> None:
        """Whatever there is of a chunk is done with."""
        if self._passing is not None:
            passing, self._passing = self._passing, None
            if passing.counts:
                tell_counts(passing.chunk, self._memory)
            passing.chunk.end()

    def _wanted(self, passing: _Passing) -> int:
        """Rows whose logits are wanted of this stage."""
        return passing.chunk.rows.count - passing.first_logit_row if self._memory.model.is_last else 0

    def _head(self, passing: _Passing) -> Answer:
        if passing.heads is None:
            passing.heads = passing.chunk.logits(passing.first_logit_row, run_launch)
        logits = next(passing.heads).to("cpu", copy=True)
        passing.rows_done += len(logits)
        return Answer(logits.contiguous().numpy().tobytes(), count=int(passing.rows_done == self._wanted(passing)))


def run_layer(chunk: Chunk, stage: Stage) -> None:
    """Launch one layer of a chunk and wait for it."""
    chunk.step(run_launch)
    while not chunk.is_between_layers:
        chunk.step(run_launch)
    stage.wait_here()


def give_streams(chunk: Chunk, way: HandOff) -> None:
    """Send what a chunk's layers left; its memory may be another one's when this returns."""
    way.send([chunk.whole_streams()])
    way.before_overwriting()


def tell_counts(chunk: Chunk, memory: ChunkMemory) -> None:
    """Behind a chunk that counts: which experts its last rows took, for whoever moves seats."""
    tiers = memory.model.tiers
    if chunk.is_through and tiers is not None and memory.asked is not None:
        tiers.prompt_was_read(memory.asked.to("cpu", copy=True).numpy())


def run_launch(launch: Launch) -> None:
    """As it is."""
    launch.run()
