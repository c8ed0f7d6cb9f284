"""The buffers of one bucket of rows: made once, shared by layers that run after one another, never moved.

Knows what is as long as the bucket; knows no order of parts.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from strata.kernels.attention_rows import AttentionRowsShape, AttentionWork, RotationTables
from strata.kernels.cell_pages import CellPages, PageWork, blocks_of_row
from strata.kernels.expert_plan.tables import PlannedWork
from strata.kernels.expert_rows.buffers import ExpertBuffers
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.router import Routes
from strata.kernels.window_rows import WindowRows
from strata.models.device.description import DeviceModel, SparseMlp
from strata.models.device.launches import Workspace
from strata.models.device.state import DeviceState
from strata.quant.layout import MatrixLayout

Made = TypeVar("Made")


@dataclass
class Buffers:
    """What the launches of one bucket read and write beside the weights."""

    model: DeviceModel
    state: DeviceState
    rotation: RotationTables
    rows: WindowRows
    workspace: Workspace  # shared with other buckets: only one runs at a time
    _made: dict[Hashable, object] = field(default_factory=dict)

    @property
    def streams(self) -> torch.Tensor:
        """The residual streams [rows, streams * hidden]."""
        return self.take("streams", self.model.stream_width)

    @property
    def logits(self) -> torch.Tensor:
        """Of every row [rows, vocabulary]."""
        return self.take("logits", self.model.vocabulary)

    @property
    def stored_delta(self) -> torch.Tensor:
        """Projected rows of all delta nets, from which a commit replays [layers, rows, width]."""
        shape = self.model.delta_shape
        assert shape is not None
        return self.workspace.take(
            "stored delta", self.state.sizes.delta_layers, self.rows.count, shape.projected_width
        )

    @property
    def stored_ngrams(self) -> torch.Tensor:
        """What the n-gram layers' convolutions read of the rows [layers, rows, streams * hidden]."""
        layers = self.state.sizes.ngram_layers
        return self.workspace.take("stored n-grams", layers, self.rows.count, self.model.stream_width)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """float32 [rows, *shape] from the workspace."""
        return self.workspace.take(name, self.rows.count, *shape)

    def counters(self, name: str, *shape: int) -> torch.Tensor:
        """int32 [rows, *shape] from the workspace: zeros, to which every launch that counts in them sets them back."""
        return self.workspace.take(name, self.rows.count, *shape, dtype=torch.int32)

    def room(self, name: str, readers: Sequence[MatrixLayout], reads_plain: bool = False) -> RowsOut:
        """Rows that matrices of these layouts read next; also as they are if `reads_plain`."""
        kinds = tuple(dict.fromkeys(replace(layout, rows=1) for layout in readers))
        key = ("room", name, kinds, reads_plain)
        return self._once(key, lambda: room_for(readers, self.rows.count, self.model.device, reads_plain))

    def attention_work(self, shape: AttentionRowsShape) -> AttentionWork:
        """What an attention layer's launches leave for each other."""
        return self._once(
            ("attention", shape),
            lambda: AttentionWork.empty(self.rows.count, shape, self.state.cells, self.model.device),
        )

    def page_work(self, pages: CellPages, top_blocks: int) -> PageWork:
        """Which blocks of cells in main memory an attention layer's rows lack."""
        count = min(self.rows.count * blocks_of_row(top_blocks), pages.places)
        missing, targets = self.workspace.take("missing pages", 2, count, dtype=torch.int32)
        return PageWork(missing, targets)

    def routes(self, mlp: SparseMlp) -> Routes:
        """Where a layer's rows go."""
        has_gate = mlp.shared is not None and mlp.shared.gate is not None
        ranks = mlp.experts_per_token
        return self._once(
            ("routes", ranks, has_gate), lambda: Routes.empty(self.rows.count, ranks, self.model.device, has_gate)
        )

    def planned(self, mlp: SparseMlp) -> PlannedWork:
        """Where a layer's experts are computed."""
        ranks = mlp.experts_per_token
        return self._once(("planned", ranks), lambda: PlannedWork.empty(self.rows.count, ranks, self.model.device))

    def experts(self, mlp: SparseMlp) -> ExpertBuffers:
        """What a layer's experts write."""
        layout, ranks = mlp.blobs.layout, mlp.experts_per_token
        shared_down = None if mlp.shared is None else mlp.shared.down.layout
        return self._once(
            ("experts", layout, ranks, shared_down),
            lambda: ExpertBuffers.empty(layout, self.rows.count, ranks, self.model.device, shared_down),
        )

    def _once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[return-value]
