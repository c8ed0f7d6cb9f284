"""The draft layer of `qwen4_exp` (multi-token prediction): streams at i and token i + 1 give logits for token i + 2.

Knows the layer's place between the model's embedding and head; how deep to draft is decided in `speculation/`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from strata.models.base import DraftRows, LogitRows, Output
from strata.models.blocks.linear import linear
from strata.models.blocks.mtp_head import MtpJoinWeights, join_streams
from strata.models.blocks.residual_streams import ResidualWeights, read_streams
from strata.models.blocks.rotary import rotation_at
from strata.models.blocks.rows import iterate_tiles
from strata.models.fast.states import SlotRows
from strata.models.fast.windows import FastWindows
from strata.models.mixers.base import RowsInfo
from strata.models.qwen4_exp_layer import LayerState, Qwen4ExpLayer
from strata.models.reading import run_through
from strata.models.row_model import first_logit_row, not_finite, require_finite

if TYPE_CHECKING:
    from strata.models.qwen4_exp import Qwen4Exp


@dataclass
class MtpState:
    """One slot's state of the draft layer; its row i belongs to position i of the text."""

    position: int
    layer: LayerState

    def bytes_used(self) -> int:
        return self.layer.bytes_used()

    def clone(self) -> "MtpState":
        return MtpState(self.position, self.layer.clone())


class Qwen4ExpMtp:
    """See `DraftHead`. `Output.hidden` is the layer's own streams, which stand for the model's in the next draft."""

    def __init__(
        self, model: "Qwen4Exp", layer: Qwen4ExpLayer, join: MtpJoinWeights, final_residual: ResidualWeights
    ) -> None:
        self.layer = layer
        self.fast: FastWindows | None = None  # rows in C++; None: in torch
        self.join = join
        self.final_residual = final_residual
        self._embedding, self._head_weight = model.embedding, model.head_weight
        self._frequencies, self._dtype = model.frequencies, model.dtype
        self._ratio = model.config.indexer.ratio

    def new_state(self) -> MtpState:
        return MtpState(0, self.layer.new_state())

    @torch.no_grad()
    def read(self, rows: DraftRows, logit_rows: LogitRows = LogitRows.LAST) -> Output:
        """See `DraftHead.read`; like the model's reads, tile by tile."""
        first, count = rows.state.position, rows.next_token_ids.shape[0]
        if self.fast is not None:
            return self._fast_read(self.fast, rows, logit_rows)
        positions = torch.arange(first, first + count)
        rotation = rotation_at(positions, self._frequencies, self._dtype)
        info = RowsInfo(rows.next_token_ids, positions, rotation, ((0, count),))
        streams, logits = [], []
        for start, stop in iterate_tiles(first, count):
            embedding = self._embedding(rows.next_token_ids[start:stop])
            joined = join_streams(rows.hidden[start:stop], embedding, self.join)
            streams.append(self.layer.read(joined, info.tile(start, stop), rows.state.layer))
            if logit_rows is LogitRows.ALL:
                logits.append(self._logits(streams[-1]))
        rows.state.position += count
        if logit_rows is LogitRows.LAST:
            logits.append(self._logits(streams[-1][-1:]))
        hidden = torch.cat(streams)
        made = torch.cat(logits) if logits else hidden.new_zeros(0, self._head_weight.shape[0])
        require_finite(made if logits else hidden, "the draft layer")
        return Output(made, hidden)

    def _fast_read(self, fast: FastWindows, rows: DraftRows, logit_rows: LogitRows) -> Output:
        state, count = rows.state, rows.next_token_ids.shape[0]
        observer = self.layer.observer
        steps = fast.read_steps(
            SlotRows(state.position, [state.layer], rows.next_token_ids),
            joined_hidden=rows.hidden.contiguous(),
            first_logit_row=first_logit_row(logit_rows, count),
            with_routing=observer is not None,
        )
        made = run_through(steps)
        if not made.is_finite:
            raise not_finite("the draft layer")
        if observer is not None and made.routed is not None:
            observer(self.layer.index, made.routed[0].long())
        state.position += count
        return Output(made.logits, made.hidden)

    def truncate(self, state: MtpState, position: int) -> None:
        state.layer.mixer.truncate(position, self._ratio)
        state.position = min(state.position, position)

    def _logits(self, streams: torch.Tensor) -> torch.Tensor:
        return linear(read_streams(streams, self.final_residual)[0], self._head_weight)
