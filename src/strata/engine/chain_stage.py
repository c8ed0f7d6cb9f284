"""What windows run on, as protocols: a model on one device, a chain of stages, and a stage as its chain knows it.

    StageModel, DeviceWindows, StageSlots
        └── WindowStage    Stage · StageChain
                                     └── ChainStage    LocalStage · a stage of another process

Knows calls with plain values; no tensor but results, and logits that somebody wants.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from strata.engine.hand_off import Crossing, HandOff
from strata.engine.slot_keeper import SlotKeeper
from strata.engine.stage_programs import Variant
from strata.engine.stage_sizes import StageSizes
from strata.engine.window_words import RowsPart
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import ReplyStart

if TYPE_CHECKING:
    from strata.engine.stage import Stage


class Answering(Protocol):
    """Who answers windows: `experts.tiers.ExpertTiers`, `models.device.file_tables.FileTables`."""

    def launched(self, *, is_read: bool = False) -> None:
        """A window is about to be launched."""
        ...

    def landed(self) -> None:
        """The next one has ended."""
        ...

    def cut_off(self) -> None:
        """The last one was not launched whole."""
        ...

    def forget(self) -> None:
        """All have ended, and nobody lands them."""
        ...

    def waiting_for(self) -> str | None:
        """In words; None: nothing is asked for. Raises EngineError behind a fork, or once it is closed."""
        ...


class TakesWindows(Protocol):
    """What a chain has in common with each of its stages. Everything is launched in order and nothing waited for."""

    @property
    def most_rows(self) -> int:
        """Rows that may share a window."""
        ...

    def set_plan(self, serial: int, parts: Sequence[PlannedPart]) -> None:
        """Which slots take part in the next window, and their drafts; 1 + drafts rows each must fit the bucket."""
        ...

    def set_reply(self, slot: int, start: ReplyStart) -> None:
        """A reply begins, or goes on where the host says, in a slot whose windows have all ended."""
        ...

    def end_reply(self, slot: int) -> None:
        """Windows that are planned for this slot from now on leave it as it is."""
        ...

    def set_rows(self, bucket: int, parts: Sequence[RowsPart]) -> None:
        """The rows that the next forward or read of this bucket computes, part s being segment s."""
        ...

    def set_accepted(self, counts: Sequence[int]) -> None:
        """How many rows of each segment the next commit takes; segments beyond the list take none."""
        ...

    def run(self, variant: Variant, bucket: int) -> None:
        """Launch one variant over the rows of a bucket."""
        ...

    def logits_on_host(self, bucket: int, start: int, stop: int) -> torch.Tensor:
        """float32 [stop - start, vocabulary] of rows of the last forward or window, in memory of their own. Waits."""
        ...

    def wait_here(self) -> None:
        """Until what was launched on this thread's streams is done; copies on roads of their own may go on."""
        ...

    def wait(self) -> None:
        """Until the device, or every one of them, has done everything."""
        ...

    @property
    def asked(self) -> Sequence[Answering]:
        """Who answers windows while they run."""
        ...

    def slot_keepers(self) -> Sequence[SlotKeeper]:
        """New ones, of each stage one: whoever asks is the only one who keeps copies of slots."""
        ...


class WindowStage(TakesWindows, Protocol):
    """All layers of a model, on one device or several."""

    @property
    def device(self) -> torch.device:
        """Where results are."""
        ...

    @property
    def sizes(self) -> StageSizes:
        """Of every stage."""
        ...

    @property
    def segments(self) -> int:
        """Slots that may share a window."""
        ...

    @property
    def results(self) -> WindowResults:
        """Of the last window that chose its own tokens."""
        ...

    @property
    def vocabulary(self) -> int:
        """Logits of a row."""
        ...

    @property
    def max_position(self) -> int:
        """Rows that a slot may have."""
        ...

    @property
    def stages(self) -> "Sequence[Stage]":
        """Those of this process, in the order of their layers."""
        ...

    def bucket_for(self, rows: int) -> int:
        """The least bucket that holds `rows`. Raises ValueError if none does."""
        ...

    def window_variant(self, slots: Iterable[int]) -> Variant:
        """The shortest window for the replies that were set in these slots."""
        ...


class ChainStage(TakesWindows, Protocol):
    """A run of layers. What crosses to another stage is told by a value, so that neither sees the other's tensors."""

    @property
    def name(self) -> str:
        """Which stage of how many it is, and where, for an error."""
        ...

    def before_giving(self, way: HandOff) -> None:
        """What is launched from now on may write over what was given by this way."""
        ...

    def give(self, way: HandOff, crossing: Crossing) -> None:
        """Send, behind what was launched."""
        ...

    def take(self, way: HandOff, crossing: Crossing) -> None:
        """Receive, in front of what is launched from now on."""
        ...
