"""The contract between the engine and a model family: rows in, logits and streams out, state beside them.

Knows no family and no file. A family's class implements `LanguageModel`; the engine sees nothing else of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch

from strata.types import ReadAhead


class LogitRows(Enum):
    """For which rows of a read the head is computed: a prompt needs its last row only."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class SlotState(Protocol):
    """Everything that one conversation leaves behind in a model; made by `LanguageModel.new_state`."""

    position: int  # rows committed so far = position of the next row

    def bytes_used(self) -> int:
        """Bytes of the tensors that this state holds now."""
        ...

    def clone(self) -> "SlotState":
        """An independent copy: a checkpoint, or the start of another continuation."""
        ...


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one slot inside a call; they start at `state.position`."""

    state: Any  # the family's SlotState
    token_ids: torch.Tensor  # [rows] int64, rows >= 1


@dataclass(frozen=True)
class Output:
    """What a call computed; rows of the segments one after another."""

    logits: torch.Tensor  # [logit rows, vocabulary], in the model's compute dtype
    hidden: torch.Tensor  # [rows, hidden or streams * hidden]: what the MTP head reads (before the final mixer or
    # norm); [rows, 0] of a model without a draft layer on a device, where they stay


@dataclass(frozen=True)
class WindowResult:
    """A computed window whose rows are not yet part of any state."""

    segments: Sequence[Segment]
    output: Output  # logits of every row
    pending: Any  # the family's stored inputs, from which `commit` replays the accepted rows


class Reading(Protocol):
    """Rows of one slot on their way into its state, step by step; made by `LanguageModel.begin_read`.

    Between two steps windows of other slots may be computed. Only `cancel` may follow an exception.
    """

    @property
    def checkpoints(self) -> Sequence[Any]:
        """The states at marks that it has passed so far, as `state.checkpoints` takes them; all of them behind
        `finish`.
        """
        ...

    def advance(self) -> bool:
        """The next step: one layer of all rows, or whatever a model takes for one. True if it was the last.

        Where a device has much to do first it may come back with nothing done.
        """
        ...

    def finish(self) -> Output:
        """Behind the last step: the rows are part of the state."""
        ...

    def cancel(self) -> None:
        """Give the rows up, wherever they are: nobody goes on from the state, only back in it. Also if it is over."""
        ...


class LanguageModel(Protocol):
    """One model family on one device, in plain torch. Not thread-safe; states of several slots may share a call."""

    config: Any
    vocabulary_size: int
    max_position: int  # rows that a slot may hold at most
    experts_per_row: int  # rows of routed experts that one row of text takes, all layers together
    experts_place: str  # where routed experts are computed, if that is one place: cpu or vram

    @property
    def reads_as_windows(self) -> bool:
        """Whether a read row has the bits of a decoded one."""
        ...

    @property
    def keeps_marks(self) -> bool:
        """Whether a read can keep states inside its rows; otherwise it ends where one is wanted."""
        ...

    @property
    def chunk_rows(self) -> int | None:
        """The most rows that pass the model together in a read; None: as many as one likes."""
        ...

    @property
    def reads_runs(self) -> bool:
        """Whether a read may be of many chunks, which pass several stages one behind the other."""
        ...

    @property
    def read_ahead(self) -> ReadAhead:
        """What the device has to do for the read under way; nothing where a step returns when it is done."""
        ...

    @property
    def most_window_rows(self) -> int | None:
        """The most rows of one window; None: as many as one likes."""
        ...

    @property
    def pages_counted(self) -> Mapping[str, int]:
        """Blocks of keys and values in main memory, as `Statistics` has them; empty: none lie there."""
        ...

    @property
    def experts_counted(self) -> Mapping[str, int] | None:
        """Distinct experts of each layer of each window so far, by place; None: all are computed at `experts_place`."""
        ...

    @property
    def experts_read(self) -> Mapping[str, int]:
        """What was read of experts that stay in files, as `Statistics` has it; empty: none do. From any thread."""
        ...

    @property
    def arrivals(self) -> int:
        """Experts and rows of tables that came from files so far: a sign that a step goes on. From any thread."""
        ...

    @property
    def waiting_for(self) -> str | None:
        """What a step under way waits for beside its device, in a sentence; None if for nothing. From any thread."""
        ...

    @property
    def draft_head(self) -> "DraftHead | None":
        """The model's own draft layer, if it has one."""
        ...

    def new_state(self) -> Any:
        """An empty state for one slot."""
        ...

    def release(self, state: Any) -> None:
        """A state of `new_state`, or one that was made from it, is used no more: its place is free for another one."""
        ...

    def read(self, segments: Sequence[Segment], logit_rows: LogitRows = LogitRows.LAST) -> Output:
        """Read the segments' rows and advance their states.

        Cuts of one text at multiples of 64 give the same bits; cuts elsewhere agree within rounding.
        """
        ...

    def begin_read(
        self, segment: Segment, logit_rows: LogitRows = LogitRows.LAST, marks: Sequence[int] = ()
    ) -> Reading:
        """The same for one segment, in steps of the caller's.

        marks: positions inside the segment, rising multiples of 64, whose states are to be kept as well, of a model
        that keeps marks. Raises RequestError for rows that cannot be read, ValueError beside another read into the
        same state; a model that does not read in steps of its own may refuse any other one.
        """
        ...

    def window(self, segments: Sequence[Segment]) -> WindowResult:
        """Compute the rows of a decode window without changing any state; each row is as if decoded one by one."""
        ...

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        """Make the first `accepted_rows[i]` rows of segment i part of its state (0 leaves it as it was)."""
        ...


@dataclass(frozen=True)
class DraftRows:
    """Consecutive rows of one slot for a draft head; they start at `state.position`."""

    state: Any  # made by `DraftHead.new_state`
    hidden: torch.Tensor  # [rows, width]: `Output.hidden` of the model at positions i (or of the head at i - 1)
    next_token_ids: torch.Tensor  # [rows] int64: the tokens at i + 1


class DraftHead(Protocol):
    """A model's own draft layer: from the hidden row at i and token i + 1 to logits for token i + 2."""

    def new_state(self) -> Any:
        """An empty state for one slot; it has a `position` as a SlotState has."""
        ...

    def read(self, rows: DraftRows, logit_rows: LogitRows = LogitRows.LAST) -> Output:
        """Read the rows and advance their state. `Output.hidden` may stand for the model's at the next position."""
        ...

    def truncate(self, state: Any, position: int) -> None:
        """Forget the rows from `position` on: drafts that were read into the state."""
        ...
