"""What every family does alike: cut reads into tiles, run the layers, hand out logits, compute and commit windows.

Knows the contract of layers (`mixers/base.py`) and of models (`base.py`); knows no architecture.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from strata.errors import EngineError, RequestError
from strata.experts.expert_files import ReadCache
from strata.models.base import DraftHead, LogitRows, Output, Reading, Segment, WindowResult
from strata.models.blocks.rotary import rotation_at
from strata.models.blocks.rows import iterate_tiles
from strata.models.fast.states import SlotRows
from strata.models.fast.windows import FastRows, FastWindow, FastWindows
from strata.models.mixers.base import RowsInfo, StatefulPart
from strata.models.reading import OutputSteps, Steps, run_through
from strata.types import ReadAhead


@dataclass
class ModelState:
    """One slot's state: one part per layer. See `SlotState`."""

    position: int
    layers: list[Any]

    def bytes_used(self) -> int:
        return sum(layer.bytes_used() for layer in self.layers)

    def clone(self) -> "ModelState":
        return ModelState(self.position, [layer.clone() for layer in self.layers])


class RowModel(ABC):
    """A `LanguageModel` made of layers; a family says how rows are embedded and how logits are made."""

    config: Any
    vocabulary_size: int
    max_position: int
    layers: Sequence[StatefulPart]
    frequencies: torch.Tensor  # of the rotary embedding
    dtype: torch.dtype  # compute dtype
    draft_head: DraftHead | None = None  # the model's own draft layer, if it has one
    keeps_marks = False
    reads_runs = False
    chunk_rows = None  # of one read: as many rows as the caller likes
    most_window_rows = None
    experts_place = "cpu"
    experts_counted: Mapping[str, int] | None = None
    waiting_for: str | None = None
    read_ahead = ReadAhead()  # a step returns when it is done
    reads: ReadCache | None = None  # of experts that stay in files; None: none do
    fast: FastWindows | None = None  # rows in C++; None: in torch, which computes the same within rounding

    @property
    def experts_per_row(self) -> int:
        """Rows of routed experts that one row of text takes, all layers together."""
        return sum(getattr(layer, "routed_experts", 0) for layer in self.layers)

    @property
    def pages_counted(self) -> Mapping[str, int]:
        """See `LanguageModel`: a card alone keeps blocks of what lies in main memory."""
        return {}

    @property
    def experts_read(self) -> Mapping[str, int]:
        """See `LanguageModel`."""
        return {} if self.reads is None else asdict(self.reads.counters())

    @property
    def arrivals(self) -> int:
        """See `LanguageModel`."""
        return 0 if self.reads is None else self.reads.counters().experts

    @property
    def reads_as_windows(self) -> bool:
        """Whether a read row has the bits of a decoded one: in C++, where both take the same road."""
        return self.fast is not None

    @abstractmethod
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [rows] -> what the first layer reads [rows, width]."""

    @abstractmethod
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the last layer gave [rows, width] -> logits [rows, vocabulary]."""

    def new_state(self) -> ModelState:
        return ModelState(0, [layer.new_state() for layer in self.layers])

    def release(self, state: ModelState) -> None:  # noqa: B027 - not abstract: families have nothing to add
        """See `LanguageModel.release`: what nobody refers to is freed by Python."""

    def read(self, segments: Sequence[Segment], logit_rows: LogitRows = LogitRows.LAST) -> Output:
        """See `LanguageModel.read`."""
        for segment in segments:
            check_segment(segment, self.max_position, self.vocabulary_size)
        outputs = [run_through(self._steps(segment, logit_rows)) for segment in segments]
        return Output(
            torch.cat([output.logits for output in outputs]), torch.cat([output.hidden for output in outputs])
        )

    def begin_read(
        self, segment: Segment, logit_rows: LogitRows = LogitRows.LAST, marks: Sequence[int] = ()
    ) -> Reading:
        """See `LanguageModel.begin_read`. A step is one layer of all rows."""
        assert not marks, "a read on the CPU keeps no state inside its rows"
        check_segment(segment, self.max_position, self.vocabulary_size)
        return Steps(self._steps(segment, logit_rows))

    @torch.no_grad()
    def window(self, segments: Sequence[Segment]) -> WindowResult:
        """See `LanguageModel.window`."""
        for segment in segments:
            check_segment(segment, self.max_position, self.vocabulary_size)
        if self.fast is not None:
            return self._fast_window(self.fast, segments)
        rows = self._rows_info(segments)
        hidden = self.embed(rows.token_ids)
        pending: list[Any] = []
        for index, layer in enumerate(self.layers):
            hidden, layer_pending = layer.window(hidden, rows, [segment.state.layers[index] for segment in segments])
            pending.append(layer_pending)
        logits = self.head(hidden)
        require_finite(logits, "the window")
        return WindowResult(segments, Output(logits, hidden), pending)

    @torch.no_grad()
    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        """See `LanguageModel.commit`."""
        for slot, (segment, accepted) in enumerate(zip(window.segments, accepted_rows, strict=True)):
            if not 0 <= accepted <= segment.token_ids.shape[0]:
                raise ValueError(f"accepted {accepted} of {segment.token_ids.shape[0]} rows")
            if accepted == 0:
                continue
            if isinstance(window.pending, FastWindow):
                assert self.fast is not None
                self.fast.commit(window.pending, slot, segment.state.layers, accepted)
            else:
                for index, layer in enumerate(self.layers):
                    layer.commit(window.pending[index], slot, segment.state.layers[index], accepted)
            segment.state.position += accepted

    def _fast_window(self, fast: FastWindows, segments: Sequence[Segment]) -> WindowResult:
        made = fast.compute([_slot_rows(each) for each in segments], with_routing=self._is_observed())
        if not made.is_finite:
            raise not_finite("the window")
        self._tell_routing(fast, made)
        return WindowResult(segments, Output(made.logits, made.hidden), made)

    def _steps(self, segment: Segment, logit_rows: LogitRows) -> OutputSteps:
        if self.fast is None:
            return self._torch_steps(segment, logit_rows)
        return self._fast_steps(self.fast, segment, logit_rows)

    def _fast_steps(self, fast: FastWindows, segment: Segment, logit_rows: LogitRows) -> OutputSteps:
        count = segment.token_ids.shape[0]
        made = yield from fast.read_steps(
            _slot_rows(segment), first_logit_row=first_logit_row(logit_rows, count), with_routing=self._is_observed()
        )
        if not made.is_finite:
            raise not_finite("the prompt")
        segment.state.position += count
        self._tell_routing(fast, made)
        return Output(made.logits, made.hidden)

    def _is_observed(self) -> bool:
        return any(getattr(layer, "observer", None) is not None for layer in self.layers)

    def _tell_routing(self, fast: FastWindows, made: FastRows) -> None:
        for index, layer in enumerate(self.layers):
            observer = getattr(layer, "observer", None)
            if observer is not None and made.routed is not None and fast.shape.experts_per_token[index]:
                observer(index, made.routed[index].long())

    def _torch_steps(self, segment: Segment, logit_rows: LogitRows) -> OutputSteps:
        """In every layer tile by tile."""
        state = segment.state
        rows = self._rows_info([segment])
        tiles = list(iterate_tiles(state.position, segment.token_ids.shape[0]))
        tile_rows = [rows.tile(start, stop) for start, stop in tiles]
        hidden = self.embed(rows.token_ids)
        for index, layer in enumerate(self.layers):
            if index:
                yield
            for (start, stop), tile in zip(tiles, tile_rows, strict=True):
                hidden[start:stop] = layer.read(hidden[start:stop], tile, state.layers[index])
        state.position += segment.token_ids.shape[0]
        if logit_rows is LogitRows.ALL:
            logits = torch.cat([self.head(hidden[start:stop]) for start, stop in tiles])
        elif logit_rows is LogitRows.LAST:
            logits = self.head(hidden[-1:])
        else:
            logits = hidden.new_zeros(0, self.vocabulary_size)
        require_finite(hidden if logit_rows is LogitRows.NONE else logits, "the prompt")
        return Output(logits, hidden)

    def _rows_info(self, segments: Sequence[Segment]) -> RowsInfo:
        bounds, parts, start = [], [], 0
        for segment in segments:
            count = segment.token_ids.shape[0]
            bounds.append((start, start + count))
            parts.append(torch.arange(segment.state.position, segment.state.position + count))
            start += count
        positions = torch.cat(parts)
        token_ids = torch.cat([segment.token_ids for segment in segments])
        rotation = rotation_at(positions, self.frequencies, self.dtype)
        return RowsInfo(token_ids, positions, rotation, tuple(bounds))


def check_segment(segment: Segment, max_position: int, vocabulary_size: int) -> None:
    """Refuse rows that a model cannot compute. Raises RequestError."""
    count = segment.token_ids.shape[0]
    if count == 0:
        raise RequestError("there is nothing to read: a segment needs at least one token")
    if segment.state.position + count > max_position:
        raise RequestError(
            f"{segment.state.position + count} tokens are more than this model's context of {max_position}"
        )
    low, high = int(segment.token_ids.min()), int(segment.token_ids.max())
    if low < 0 or high >= vocabulary_size:
        wrong = low if low < 0 else high
        raise RequestError(f"token id {wrong} is not in the vocabulary (0 to {vocabulary_size - 1})")


def _slot_rows(segment: Segment) -> SlotRows:
    return SlotRows(segment.state.position, segment.state.layers, segment.token_ids)


def first_logit_row(logit_rows: LogitRows, rows: int) -> int:
    """The first of `rows` rows whose logits are wanted; `rows` if none are."""
    return {LogitRows.NONE: rows, LogitRows.LAST: rows - 1, LogitRows.ALL: 0}[logit_rows]


def require_finite(values: torch.Tensor, where: str) -> None:
    """Raises EngineError if there is a NaN or an infinity."""
    if not bool(torch.isfinite(values).all()):
        raise not_finite(where)


def not_finite(where: str) -> EngineError:
    """What a request ends with whose logits are NaN or infinite."""
    return EngineError(f"the logits of {where} are not finite (NaN or infinity): broken weights or a broken state")
