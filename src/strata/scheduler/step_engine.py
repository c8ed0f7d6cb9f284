"""What the scheduler asks of an engine. Knows steps and counts; no model."""

from collections.abc import Mapping
from typing import Protocol

from strata.engine.request import TokenRequest
from strata.engine.steps import ParkingSpace, Preparation, SlotResult, Step
from strata.types import ReadAhead


class StepEngine(Protocol):
    """What runs the steps; `engine.engine.TokenEngine` is one."""

    @property
    def reads_as_windows(self) -> bool:
        """Whether a read row has the bits of a decoded one."""
        ...

    @property
    def experts_are_rows(self) -> bool:
        """What `experts` counts: see `Statistics`."""
        ...

    @property
    def reads_runs(self) -> bool:
        """Whether a read may go over many chunks, which pass several stages one behind the other."""
        ...

    @property
    def read_ahead(self) -> ReadAhead:
        """Of the prompt that is being read: what its device has to do."""
        ...

    @property
    def waiting_for(self) -> str | None:
        """What the step under way waits for beside its device, in a sentence. From any thread."""
        ...

    @property
    def arrivals(self) -> int:
        """Experts and rows of tables that came from files so far. From any thread."""
        ...

    @property
    def parking(self) -> ParkingSpace:
        """How much it keeps of conversations whose slots were wanted."""
        ...

    def check(self, request: TokenRequest) -> None:
        """Raises RequestError for a request that cannot be run."""
        ...

    def prepare(self, request: TokenRequest) -> Preparation | None:
        """Start what a checked request needs before it gets a slot. Raises RequestError."""
        ...

    def run(self, step: Step) -> tuple[SlotResult, ...]:
        """Do one step. What an open or a read gives its own slot comes last."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Bytes by use."""
        ...

    def checkpoints(self) -> Mapping[str, int]:
        """What is kept of them and what became of them so far: see `Statistics`."""
        ...

    def pages(self) -> Mapping[str, int]:
        """Blocks of keys and values in main memory: see `Statistics`."""
        ...

    def experts(self) -> Mapping[str, int]:
        """Routed experts computed so far, by where: see `Statistics`."""
        ...

    def experts_read(self) -> Mapping[str, int]:
        """Of those that stay in files: see `Statistics`."""
        ...
