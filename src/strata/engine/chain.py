"""A model's layers over several stages, as one: a window of it is launched stage by stage, and nobody waits.

Knows the order of launches and what crosses; no layer and no request. Each stage has its own state, plan and variables
of its slots, so that each makes the rows of a window for itself: streams go forward, and chosen tokens come back.

    stage 0   WINDOW ─┐ streams                       ┌─▶ TAKE
    stage 1           └─▶ WINDOW ─┐ streams           ├─▶ TAKE
    stage 2                       └─▶ WINDOW ─ tokens ┘

Everything is in the order of each stage's launches: stage 0 goes on with the next window behind its TAKE. Another group
of slots has a chain of its own beside this one (`Stage(..., beside=)`), and fills the time in between.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from strata.engine.chain_stage import Answering, ChainStage
from strata.engine.hand_off import Crosses, Crossing, HandOff
from strata.engine.local_stage import LocalStage, RunStage
from strata.engine.slot_keeper import SlotKeeper
from strata.engine.stage import Stage
from strata.engine.stage_programs import Variant
from strata.engine.window_copy import window_way
from strata.engine.window_words import RowsPart
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import ReplyStart

WINDOWS = (Variant.WINDOW, Variant.UNFILTERED_WINDOW)
MakeWay = Callable[[torch.device, torch.device, int], HandOff]  # from, to, of at most so many bytes at once


@dataclass(frozen=True)
class ChainWays:
    """The hand-offs of one chain; nothing else uses them."""

    streams: Sequence[HandOff]  # from each stage to the next one
    chosen: Sequence[HandOff]  # from the last stage to each of the others

    @classmethod
    def between(cls, stages: Sequence[Stage], way: MakeWay = window_way) -> "ChainWays":
        """Inside this process, in the order of layers."""
        bucket = stages[0].buckets[-1]
        sizes = [_bytes_of(stages[0].crossing(Crossing(what, bucket))) for what in (Crosses.WINDOW, Crosses.CHOSEN)]
        streams = [way(before.device, after.device, sizes[0]) for before, after in pairwise(stages)]
        return cls(streams, [way(stages[-1].device, each.device, sizes[1]) for each in stages[:-1]])


class StageChain:
    """See `WindowStage`. Not thread-safe; the first stage is in this process."""

    def __init__(self, stages: Sequence[ChainStage], ways: ChainWays, group: int = 0) -> None:
        """In the order of layers; all of the same sizes and buckets. group: of slots, whose windows run here."""
        first = stages[0]
        assert isinstance(first, LocalStage), "results are read from the first stage"
        self.chained: tuple[ChainStage, ...] = tuple(stages)
        self._first: Stage = first.stage
        self._ways: ChainWays = ways
        self._group: int = group
        self.stages: tuple[Stage, ...] = tuple(each.stage for each in stages if isinstance(each, LocalStage))
        self.device, self.sizes, self.segments = first.stage.device, first.stage.sizes, first.stage.segments
        self.most_rows = min(each.most_rows for each in stages)
        self.vocabulary, self.max_position = first.stage.vocabulary, first.stage.max_position

    @classmethod
    def of(cls, stages: Sequence[Stage], runs: Sequence[RunStage], group: int = 0) -> "StageChain":
        """Of stages in this process, each run by its own `run`."""
        found = [
            LocalStage(stage, run, f"stage {number} of {len(stages)}")
            for number, (stage, run) in enumerate(zip(stages, runs, strict=True), start=1)
        ]
        return cls(found, ChainWays.between(stages), group)

    @property
    def results(self) -> WindowResults:
        """See `WindowStage`: each stage finds out for itself what its last window gave."""
        return self._first.results

    @property
    def asked(self) -> Sequence[Answering]:
        """See `TakesWindows`: of all stages."""
        return [each for stage in self.chained for each in stage.asked]

    def slot_keepers(self) -> Sequence[SlotKeeper]:
        """See `TakesWindows`: of every stage one."""
        return [keeper for stage in self.chained for keeper in stage.slot_keepers()]

    def bucket_for(self, rows: int) -> int:
        """See `WindowStage`."""
        return self._first.bucket_for(rows)

    def window_variant(self, slots: Iterable[int]) -> Variant:
        """See `WindowStage`."""
        return self._first.window_variant(slots)

    def set_plan(self, serial: int, parts: Sequence[PlannedPart]) -> None:
        """See `TakesWindows`."""
        for stage in self.chained:
            stage.set_plan(serial, parts)

    def set_reply(self, slot: int, start: ReplyStart) -> None:
        """See `TakesWindows`."""
        for stage in self.chained:
            stage.set_reply(slot, start)

    def end_reply(self, slot: int) -> None:
        """See `TakesWindows`."""
        for stage in self.chained:
            stage.end_reply(slot)

    def set_rows(self, bucket: int, parts: Sequence[RowsPart]) -> None:
        """See `TakesWindows`."""
        for stage in self.chained:
            stage.set_rows(bucket, parts)

    def set_accepted(self, counts: Sequence[int]) -> None:
        """See `TakesWindows`."""
        for stage in self.chained:
            stage.set_accepted(counts)

    def run(self, variant: Variant, bucket: int) -> None:
        """See `TakesWindows`: of all stages, with what crosses between them."""
        if variant is Variant.COMMIT:
            for stage in self.chained:
                stage.run(variant, bucket)
            return
        is_chosen_here = variant in WINDOWS
        if is_chosen_here:
            for way in self._ways.chosen:
                self.chained[-1].before_giving(way)
        self._run_forward(Variant.WINDOW if is_chosen_here else variant, variant, bucket)
        if is_chosen_here:
            self._bring_back(Crossing(Crosses.CHOSEN, bucket, self._group), bucket)

    def logits_on_host(self, bucket: int, start: int, stop: int) -> torch.Tensor:
        """See `TakesWindows`."""
        return self.chained[-1].logits_on_host(bucket, start, stop)

    def wait_here(self) -> None:
        """See `TakesWindows`."""
        for stage in self.chained:
            stage.wait_here()

    def wait(self) -> None:
        """See `WindowStage`."""
        for stage in self.chained:
            stage.wait()

    def _run_forward(self, variant: Variant, last: Variant, bucket: int) -> None:
        """Every stage behind the one before it; the last one has a head, and with it perhaps another variant."""
        crossing = Crossing(Crosses.WINDOW, bucket, self._group)
        for (before, after), way in zip(pairwise(self.chained), self._ways.streams, strict=True):
            before.before_giving(way)
            before.run(variant, bucket)
            before.give(way, crossing)
            after.take(way, crossing)
        self.chained[-1].run(last, bucket)

    def _bring_back(self, crossing: Crossing, bucket: int) -> None:
        """The chosen tokens to every stage but the last one, which finds out with them what stands."""
        for stage, way in zip(self.chained, self._ways.chosen, strict=False):
            self.chained[-1].give(way, crossing)
            stage.take(way, crossing)
            stage.run(Variant.TAKE, bucket)


def _bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
