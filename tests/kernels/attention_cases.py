"""Windows of random attention rows for tests: the rows of several slots over cells that hold earlier rows.

Knows shapes; knows neither road of the kernels nor a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from strata.kernels.attention_rows import (
    AttentionCells,
    AttentionLayer,
    AttentionRowsShape,
    AttentionVectors,
    AttentionWork,
    IndexerRowsShape,
    ProjectedRows,
    RotationTables,
    rotation_table,
)
from strata.kernels.window_rows import WindowRows
from strata.quant.cell_codes import CellKind, CellRows, encode

Segment = tuple[int, int, int]  # slot, its committed rows, its rows in the window


@dataclass(frozen=True)
class AttentionWindow:
    """All that the ops of one layer are given."""

    projected: ProjectedRows
    rows: WindowRows
    rotation: RotationTables
    cells: AttentionCells
    layer: AttentionLayer
    work: AttentionWork

    def with_own_state(self) -> "AttentionWindow":
        """The same inputs beside copies of the cells, and with work of its own."""
        shape, count, device = self.layer.shape, self.cells.count, self.work.query.device
        work = AttentionWork.empty(self.rows.count, shape, count, device)
        return replace(self, cells=copy_cells(self.cells), work=work)


def copy_cells(cells: AttentionCells) -> AttentionCells:
    """Cells in memory of their own."""
    keys, values = (CellRows(*(part.clone() for part in side.tensors)) for side in (cells.keys, cells.values))
    raw, pooled = (None if part is None else part.clone() for part in (cells.raw, cells.pooled))
    return AttentionCells(cells.kind, keys, values, raw, pooled)


def other_cells(cells: AttentionCells, head_dim: int) -> AttentionCells:
    """As many cells of other random values, kept alike."""

    def some(tensor: torch.Tensor, width: int) -> torch.Tensor:
        return torch.randn(*tensor.shape[:-1], width, device=tensor.device)

    keys, values = (
        encode(code, some(side.codes, head_dim))
        for code, side in ((cells.kind.keys, cells.keys), (cells.kind.values, cells.values))
    )
    index = (None if part is None else torch.randn_like(part) for part in (cells.raw, cells.pooled))
    return AttentionCells(cells.kind, keys, values, *index)


def cell_tensors(cells: AttentionCells) -> dict[str, torch.Tensor]:
    """All that cells are made of, by name."""
    tensors = {"raw": cells.raw, "pooled": cells.pooled}
    for name, side in (("keys", cells.keys), ("values", cells.values)):
        tensors |= {f"{name}.codes": side.codes, f"{name}.scales": side.scales}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def break_cells(cells: AttentionCells, slot: int, first: int, ratio: int) -> None:
    """NaN, or some codes under scales of NaN, in a slot's cells from `first` on and in their blocks."""
    for name, tensor in cell_tensors(cells).items():
        broken = tensor[slot, first // ratio if name == "pooled" else first :]
        broken.fill_(float("nan") if tensor.is_floating_point() else 85)


def window_rows(segments: Sequence[Segment], unused: int, device: torch.device | str) -> WindowRows:
    """The rows of the segments, then unused ones."""
    count = sum(segment[2] for segment in segments) + unused
    rows = WindowRows.empty(count, len(segments) + 1, device)
    start = 0
    for number, (slot, committed, added) in enumerate(segments):
        own = slice(start, start + added)
        rows.slots[own] = slot
        rows.positions[own] = torch.arange(committed, committed + added, dtype=torch.int32, device=device)
        rows.first_rows[own] = start
        rows.segment_slots[number], rows.segment_starts[number], rows.segment_counts[number] = slot, start, added
        start += added
    return rows


def random_vectors(shape: AttentionRowsShape, is_normed: bool, generator: torch.Generator) -> AttentionVectors:
    """Scales around 1; query and key norms only if asked for."""

    def scale(width: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(width, generator=generator, device=generator.device)

    heads = (scale(shape.head_dim), scale(shape.head_dim)) if is_normed else (None, None)
    if shape.indexer is None:
        return AttentionVectors(*heads)
    return AttentionVectors(*heads, scale(shape.indexer.head_dim), scale(shape.indexer.head_dim))


def frequencies_of(half: int) -> torch.Tensor:
    """Inverse frequencies of a rotary embedding, float64 [half]."""
    return 1.0 / 10_000.0 ** (torch.arange(half, dtype=torch.float64) / half)


def random_window(
    shape: AttentionRowsShape,
    segments: Sequence[Segment],
    cells: int,
    *,
    half: int,
    unused: int = 0,
    is_normed: bool = True,
    kind: CellKind = CellKind.F32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> AttentionWindow:
    """A window over slots 0 .. the highest; every cell holds random values, kept as `kind`."""
    generator = torch.Generator(device).manual_seed(seed)
    rows = window_rows(segments, unused, device)
    slots = 1 + max(segment[0] for segment in segments)

    def some(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, device=device)

    full, indexer = (slots, cells, shape.kv_heads, shape.head_dim), shape.indexer
    projected = ProjectedRows(some(rows.count, shape.projected_width))
    state = AttentionCells(kind, encode(kind.keys, some(*full)), encode(kind.values, some(*full)))
    if indexer is not None:
        projected = replace(projected, index=some(rows.count, indexer.width))
        raw, pooled = some(slots, cells, indexer.head_dim), some(slots, cells // indexer.ratio, indexer.head_dim)
        state = replace(state, raw=raw, pooled=pooled)
    layer = AttentionLayer(shape, random_vectors(shape, is_normed, generator))
    rotation = rotation_table(frequencies_of(half), cells, device)
    return AttentionWindow(
        projected, rows, rotation, state, layer, AttentionWork.empty(rows.count, shape, cells, device)
    )


PLAIN = AttentionRowsShape(query_heads=6, kv_heads=2, head_dim=32)
GATED = replace(PLAIN, has_output_gate=True)
TINY_INDEXER = IndexerRowsShape(heads=2, head_dim=16, ratio=4, top_blocks=16)
INDEXED = replace(GATED, query_heads=4, kv_heads=1, indexer=TINY_INDEXER)
PUBLISHED = AttentionRowsShape(
    query_heads=24,
    kv_heads=2,
    head_dim=256,
    has_output_gate=True,
    indexer=IndexerRowsShape(heads=4, head_dim=128, ratio=4, top_blocks=512),
)
