"""A stage of another process as a chain knows stages: the same calls, sent in order, answered only where one asks.

Knows lines and calls; no tensor of the other stage ever comes here but logits that somebody wants. What goes wrong
there is told by the next call: the model's parts no longer agree, so it is the end of the engine.
"""

from collections.abc import Sequence

import torch

from strata.engine import stage_calls as calls
from strata.engine.hand_off import Crossing, HandOff
from strata.engine.remote_copy import DistributedCopy
from strata.engine.remote_keeper import RemoteKeeper
from strata.engine.stage_line import StageLine
from strata.engine.stage_programs import Variant
from strata.engine.window_words import RowsPart
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.slots import ReplyStart


class RemoteStage:
    """See `ChainStage`, of one group of slots."""

    def __init__(self, line: StageLine, facts: calls.PartFacts, name: str, group: int = 0) -> None:
        self.name, self.most_rows = name, facts.most_rows
        self.asked = (RemoteAnswering(line, group),) if facts.asks else ()
        self._line, self._facts, self._group = line, facts, group

    def slot_keepers(self) -> Sequence[RemoteKeeper]:
        """See `TakesWindows`."""
        return [RemoteKeeper(self._line, self._facts.kept)]

    def set_plan(self, serial: int, parts: Sequence[PlannedPart]) -> None:
        """See `Stage`."""
        self._line.tell(calls.SetPlan(serial, parts, self._group))

    def set_reply(self, slot: int, start: ReplyStart) -> None:
        """See `Stage`."""
        self._line.tell(calls.SetReply(slot, start))

    def end_reply(self, slot: int) -> None:
        """See `Stage`."""
        self._line.tell(calls.EndReply(slot))

    def set_rows(self, bucket: int, parts: Sequence[RowsPart]) -> None:
        """See `Stage`."""
        self._line.tell(calls.SetRows(bucket, parts, self._group))

    def set_accepted(self, counts: Sequence[int]) -> None:
        """See `Stage`."""
        self._line.tell(calls.SetAccepted(counts, self._group))

    def run(self, variant: Variant, bucket: int) -> None:
        """See `ChainStage`."""
        self._line.tell(calls.Run(variant, bucket, self._group))

    def give(self, way: HandOff, crossing: Crossing) -> None:
        """See `ChainStage`."""
        self._line.tell(calls.Give(_number(way), crossing, self._group))

    def take(self, way: HandOff, crossing: Crossing) -> None:
        """See `ChainStage`."""
        self._line.tell(calls.Take(_number(way), crossing, self._group))

    def before_giving(self, way: HandOff) -> None:
        """See `ChainStage`."""
        self._line.tell(calls.BeforeGiving(_number(way), self._group))

    def logits_on_host(self, bucket: int, start: int, stop: int) -> torch.Tensor:
        """See `ChainStage`."""
        answer = self._line.ask(calls.AskLogits(bucket, start, stop, self._group))
        values = torch.frombuffer(bytearray(answer.content), dtype=torch.float32)
        return values.view(stop - start, self._facts.vocabulary)

    def wait(self) -> None:
        """See `ChainStage`."""
        self._line.ask(calls.AskWait())

    def wait_here(self) -> None:
        """See `ChainStage`."""
        self._line.ask(calls.AskWait())


class RemoteAnswering:
    """Who answers the other process' windows. See `flights.Answering`; what fails there is told by `landed`."""

    def __init__(self, line: StageLine, group: int) -> None:
        self._line, self._group = line, group

    def launched(self, *, is_read: bool = False) -> None:
        """See `Answering`."""
        self._line.tell(calls.WindowBegins(is_read, self._group))

    def landed(self) -> None:
        """See `Answering`. Raises EngineError if an answer failed."""
        self._line.ask(calls.AskLanded(self._group))

    def cut_off(self) -> None:
        """See `Answering`."""
        self._line.tell(calls.WindowCutOff(self._group))

    def forget(self) -> None:
        """See `Answering`."""
        self._line.tell(calls.WindowsForgotten(self._group))

    def waiting_for(self) -> str | None:
        """See `Answering`: only the other process knows."""
        return None


def _number(way: HandOff) -> int:
    assert isinstance(way, DistributedCopy), "ways to and from other processes are numbered"
    return way.number
