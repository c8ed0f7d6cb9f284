"""A stage of this process as its chain knows it: launched on its own device, by graphs where there are some.

Knows one stage; an error that leaves it says which one of how many, and where.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType

import torch

from strata.engine.chain_stage import Answering
from strata.engine.failures import is_out_of_memory, naming_lost_device
from strata.engine.hand_off import Crossing, HandOff
from strata.engine.slot_keeper import StateKeeper
from strata.engine.stage import Stage
from strata.engine.stage_programs import Variant
from strata.engine.window_words import RowsPart
from strata.errors import EngineError
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.slots import ReplyStart

RunStage = Callable[[Variant, int], None]  # launches a variant over a bucket: `Stage.run`, or its captured graphs


class LocalStage:
    """See `ChainStage`. Launches go to the current stream of the stage's device."""

    def __init__(self, stage: Stage, run: RunStage, place: str = "stage 1 of 1") -> None:
        """run: launches what the stage has prepared. place: which stage of how many it is."""
        self.stage = stage
        self.name = f"{place} ({stage.device})"
        self._run, self._launching = run, _Launching(self.name, stage.device)
        self._asked = tuple(_Named(self.name, each) for each in stage.asked)

    @property
    def most_rows(self) -> int:
        """See `TakesWindows`."""
        return self.stage.most_rows

    @property
    def asked(self) -> Sequence[Answering]:
        """See `TakesWindows`."""
        return self._asked

    def set_plan(self, serial: int, parts: Sequence[PlannedPart]) -> None:
        """See `TakesWindows`."""
        with self._launching:
            self.stage.set_plan(serial, parts)

    def set_reply(self, slot: int, start: ReplyStart) -> None:
        """See `TakesWindows`."""
        with self._launching:
            self.stage.set_reply(slot, start)

    def end_reply(self, slot: int) -> None:
        """See `TakesWindows`."""
        with self._launching:
            self.stage.end_reply(slot)

    def set_rows(self, bucket: int, parts: Sequence[RowsPart]) -> None:
        """See `TakesWindows`."""
        with self._launching:
            self.stage.set_rows(bucket, parts)

    def set_accepted(self, counts: Sequence[int]) -> None:
        """See `TakesWindows`."""
        with self._launching:
            self.stage.set_accepted(counts)

    def run(self, variant: Variant, bucket: int) -> None:
        """See `TakesWindows`."""
        with self._launching:
            self._run(variant, bucket)

    def before_giving(self, way: HandOff) -> None:
        """See `ChainStage`."""
        with self._launching:
            way.before_overwriting()

    def give(self, way: HandOff, crossing: Crossing) -> None:
        """See `ChainStage`."""
        with self._launching:
            way.send(self.stage.crossing(crossing))

    def take(self, way: HandOff, crossing: Crossing) -> None:
        """See `ChainStage`."""
        with self._launching:
            way.receive(self.stage.crossing(crossing))

    def logits_on_host(self, bucket: int, start: int, stop: int) -> torch.Tensor:
        """See `TakesWindows`."""
        with self._launching:
            return self.stage.logits_on_host(bucket, start, stop)

    def wait_here(self) -> None:
        """See `TakesWindows`."""
        with self._launching:
            self.stage.wait_here()

    def wait(self) -> None:
        """See `TakesWindows`."""
        with self._launching:
            self.stage.wait()

    def slot_keepers(self) -> Sequence[StateKeeper]:
        """See `TakesWindows`."""
        return self.stage.slot_keepers()


class _Launching:
    """Around calls of a stage: its device is the current one, and what fails there has the stage's name in front.

    A class, because a window is a dozen of such calls: the same as nested generators takes 5.5 us instead of 0.3.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._name, self._device = name, on_device(device)

    def __enter__(self) -> None:
        self._device.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device.__exit__(kind, failure, trace)
        if isinstance(failure, Exception):
            raise_named(self._name, failure)


class _Named:
    """See `Answering`: another one, with the stage's name in front of what it tells."""

    def __init__(self, name: str, answering: Answering) -> None:
        self._name, self._answering = name, answering

    def launched(self, *, is_read: bool = False) -> None:
        """See `Answering`."""
        with _naming(self._name):
            self._answering.launched(is_read=is_read)

    def landed(self) -> None:
        """See `Answering`."""
        with _naming(self._name):
            self._answering.landed()

    def cut_off(self) -> None:
        """See `Answering`."""
        with _naming(self._name):
            self._answering.cut_off()

    def forget(self) -> None:
        """See `Answering`."""
        with _naming(self._name):
            self._answering.forget()

    def waiting_for(self) -> str | None:
        """See `Answering`."""
        with _naming(self._name):
            words = self._answering.waiting_for()
        return None if words is None else f"{self._name}: {words}"


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """What fails in here has a name in front."""
    try:
        yield
    except Exception as failure:
        raise_named(name, failure)
        raise


def raise_named(name: str, failure: Exception) -> None:
    """Raises EngineError, or its kind, with a name in front for what ends requests or the engine; else does nothing."""
    told: Exception = failure
    try:
        with naming_lost_device():
            raise failure
    except Exception as found:
        told = found
    if isinstance(told, EngineError):
        raise type(told)(f"{name}: {told}") from failure
    if is_out_of_memory(told):
        raise EngineError(f"{name} ran out of memory: other programs may have taken it; ask again") from failure


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Around launches: kernels go to a card of their own only where it is the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
