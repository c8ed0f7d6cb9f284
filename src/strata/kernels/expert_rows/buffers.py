"""The memory between the launches of a layer's experts: made once for a bucket of rows. Knows no launch."""

from dataclasses import dataclass

import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.layout import BlobLayout, MatrixLayout
from strata.quant.packed import PackedMatrix


@dataclass(frozen=True)
class SharedExpert:
    """The expert of every row. Its gate and up are multiplied with the router, which reads the same rows."""

    gate_up: torch.Tensor  # float32 [rows, 2 * width], gate first; any row stride
    down: PackedMatrix  # [hidden, width]


@dataclass(frozen=True)
class ExpertBuffers:
    """What a layer's experts write, for `rows` rows that each choose `ranks`; all float32."""

    gate_up: torch.Tensor  # [rows * ranks, 2 * width]: of routed experts, by place
    hidden: RowsOut  # [rows * ranks, width]: silu(gate) * up, as down reads it
    by_rank: torch.Tensor  # [rows, ranks, hidden]: the result; places that no work lists keep what they had
    shared_hidden: RowsOut | None = None  # [rows, width of the shared expert]
    shared_rows: torch.Tensor | None = None  # [rows, hidden]: the shared expert's result, without its gate

    @classmethod
    def empty(
        cls,
        layout: BlobLayout,
        rows: int,
        ranks: int,
        device: torch.device | str,
        shared_down: MatrixLayout | None = None,
    ) -> "ExpertBuffers":
        """Room for experts of this layout, and for a shared expert whose down matrix has the layout `shared_down`."""

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        width, hidden, places, by_row = layout.gate.rows, layout.gate.columns, rows * ranks, LaunchShape()
        return cls(
            zeros(places, 2 * width),
            room_for([layout.down], places, device, launch=by_row),
            zeros(rows, ranks, hidden),
            None if shared_down is None else room_for([shared_down], rows, device, launch=by_row),
            None if shared_down is None else zeros(rows, hidden),
        )

    @classmethod
    def bytes(cls, layout: BlobLayout, rows: int, ranks: int, shared_down: MatrixLayout | None = None) -> int:
        """The most that `empty` takes."""
        width, hidden = layout.gate.rows, layout.gate.columns
        shared_width = 0 if shared_down is None else shared_down.columns
        of_places = 4 * rows * ranks * (2 * width + width + hidden)
        return of_places + (0 if shared_down is None else 4 * rows * (shared_width + hidden))
