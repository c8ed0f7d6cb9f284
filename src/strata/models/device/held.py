"""Packed matrices, tables and experts on a torch device, as blocks take them: `Weight`, `TableGather` and `Experts`.

Knows how packed bytes are moved and joined; knows no file and no family. The layers' launches (`programs.py`) read the
same bytes; what is called here (`times`, rows of tables and experts) is the definition, for models in plain torch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from strata.kernels.expert_rows.reference import expert_rows
from strata.kernels.expert_rows.reference_window import expert_matrices
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.kernels.packed_rows import packed_rows
from strata.models.fast.packing import PackedTensor, pack_values, take_rows
from strata.models.weights import TableGather
from strata.quant.layout import BLOCK_COLUMNS, TILE_ROWS, Array, MatrixLayout
from strata.quant.packed import PackedMatrix, view_matrix
from strata.weights.table_files import StoredTable


@dataclass(frozen=True)
class DeviceMatrices:
    """Matrices under one another that share their input; see `HeldMatrix`."""

    parts: tuple[PackedMatrix, ...]
    block_order: torch.Tensor | None = None  # int32 [columns // 32]: block b belongs to input block block_order[b]

    dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return sum(part.layout.rows for part in self.parts), self.parts[0].layout.columns

    @property
    def total_bytes(self) -> int:
        """What the matrices take."""
        return sum(part.layout.total_bytes for part in self.parts)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] -> [rows, out]."""
        if self.block_order is not None:
            x = x.unflatten(1, (-1, BLOCK_COLUMNS))[:, self.block_order.long()].flatten(1)
        return torch.cat([packed_rows(part, x) for part in self.parts], dim=1)


@dataclass(frozen=True)
class DeviceTable:
    """A table whose rows are decoded when they are asked for; see `TableGather`."""

    parts: tuple[PackedMatrix, ...]  # under one another; on the device, or in pinned host memory that it reads in place

    def __call__(self, row_ids: torch.Tensor) -> torch.Tensor:
        """row_ids [n] int64 -> [n, width] in main memory."""
        in_memory = [moved(part, torch.device("cpu")) for part in self.parts]
        return take_rows(in_memory, row_ids.cpu()).decode()


@dataclass(frozen=True)
class FileTable:
    """A table that stays in its files; see `TableGather`. A device's windows ask for its rows."""

    stored: StoredTable
    rows: TableGather  # read by this process, for models in plain torch

    def __call__(self, row_ids: torch.Tensor) -> torch.Tensor:
        """row_ids [n] int64 -> [n, width] in main memory."""
        return self.rows(row_ids)


@dataclass(frozen=True)
class DeviceExperts:
    """The routed experts of a layer, on the device or where the addresses of `blobs` say; see `Experts`."""

    blobs: ExpertBlobs

    def rows(self, x: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden], ids [rows, ranks] -> [rows, ranks, hidden]."""
        out = x.new_empty(*expert_ids.shape, x.shape[1])
        for expert in expert_ids.unique().tolist():
            at = expert_ids == expert
            out[at] = expert_rows(*expert_matrices(self.blobs, expert), x[at.nonzero()[:, 0]])
        return out


def moved(matrix: PackedMatrix, device: torch.device) -> PackedMatrix:
    """The matrix on a device in one run of memory; itself if it is there."""
    if matrix.codes.device.type == device.type:
        return matrix
    layout = matrix.layout
    buffer = torch.empty(layout.total_bytes, dtype=torch.uint8, device=device)
    there = view_matrix(layout, buffer, layout.places(), matrix.post_scale)
    there.copy_arrays_from(matrix)
    return there


def join_neighbours(parts: Sequence[PackedMatrix]) -> tuple[PackedMatrix, ...]:
    """Parts under one another as few as possible: neighbours of one layout and factor become one matrix."""
    runs = itertools.groupby(parts, lambda part: (_without_rows(part.layout), part.post_scale))
    return tuple(stack(tuple(run)) for _, run in runs)


def stack(parts: Sequence[PackedMatrix]) -> PackedMatrix:
    """Matrices of one layout and factor under one another as one: the same codes.

    Whole tiles stand one after another in every array, so only a part that ends inside a tile is cut anew.
    """
    if len(parts) == 1:
        return parts[0]
    rows = sum(part.layout.rows for part in parts)
    if any(part.layout.rows % TILE_ROWS for part in parts[:-1]):
        in_memory = [moved(part, torch.device("cpu")) for part in parts]
        return moved(take_rows(in_memory, torch.arange(rows)), parts[0].codes.device)
    codes, scales, super_scales, mins, super_mins = (
        torch.cat([part.array(array) for part in parts]) for array in Array
    )
    layout = replace(parts[0].layout, rows=rows)
    return PackedMatrix(layout, codes, scales, super_scales, mins, super_mins, parts[0].post_scale)


def order_by_block(packed: PackedTensor) -> tuple[tuple[PackedMatrix, ...], torch.Tensor | None]:
    """The parts of a matrix whose columns have an order of their own, and that order by blocks of 32 columns.

    An order that cuts blocks (heads narrower than 32: tiny models) is undone: the values in float codes, no order.
    """
    if packed.order is None:
        return packed.parts, None
    blocks = blocks_in_order(packed.order)
    if blocks is not None:
        return packed.parts, blocks
    values = torch.cat([part.decode() for part in packed.parts])
    return (pack_values(values[:, packed.order.long().argsort()]),), None


def blocks_in_order(order: torch.Tensor) -> torch.Tensor | None:
    """The order of whole blocks of 32 that an order of columns [columns] is, int32; None if it cuts blocks."""
    if order.numel() % BLOCK_COLUMNS:
        return None
    columns = order.long().view(-1, BLOCK_COLUMNS)
    first = columns[:, :1]
    is_whole = (columns - first == torch.arange(BLOCK_COLUMNS)).all() and (first % BLOCK_COLUMNS == 0).all()
    return (first[:, 0] // BLOCK_COLUMNS).int() if bool(is_whole) else None


def _without_rows(layout: MatrixLayout) -> MatrixLayout:
    return replace(layout, rows=1)
