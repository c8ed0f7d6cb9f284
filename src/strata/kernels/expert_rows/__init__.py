"""Expert rows as docs/storage-codes.md defines them: checks, and the choice of road. Knows no model."""

from strata.kernels.expert_rows.buffers import ExpertBuffers, SharedExpert
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.packed_rows import check_rows
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference


def expert_rows_into(
    blobs: ExpertBlobs, work: ExpertWork, x: RowsOut, buffers: ExpertBuffers, shared: SharedExpert | None = None
) -> None:
    """The listed places of `buffers.by_rank`, and `buffers.shared_rows` where there is a shared expert.

    x: rows as gate and up read them. Two launches where gate and up have one layout and no code is a float one, else
    three or four, the shared expert among them; nothing is allocated: safe to capture in a graph. The bits are those
    of `reference.expert_rows` and of the C++ library. Raises ValueError for other shapes, or rows that are missing.
    """
    is_reference = takes_reference(buffers.by_rank)
    _check(blobs, work, x, buffers, shared, is_reference)
    if is_reference:
        from strata.kernels.expert_rows.reference_window import expert_rows_into as by_definition

        by_definition(blobs, work, x, buffers, shared)
        return
    from strata.kernels.expert_rows import window

    window.expert_rows_into(blobs, work, x, buffers, shared)


def _check(
    blobs: ExpertBlobs,
    work: ExpertWork,
    x: RowsOut,
    buffers: ExpertBuffers,
    shared: SharedExpert | None,
    is_reference: bool,
) -> None:
    rows, ranks, hidden = buffers.by_rank.shape
    layout = blobs.layout
    if (ranks, hidden) != (work.ranks, layout.gate.columns) or not buffers.by_rank.is_contiguous():
        raise ValueError(f"by_rank must be [rows, {work.ranks}, {layout.gate.columns}], not {[rows, ranks, hidden]}")
    if tuple(buffers.gate_up.shape) != (rows * ranks, 2 * layout.gate.rows):
        found = list(buffers.gate_up.shape)
        raise ValueError(f"gate_up must be {[rows * ranks, 2 * layout.gate.rows]}, not {found}")
    for matrix in (layout.gate, layout.up):
        check_rows(matrix, rows, x, is_reference)
    check_rows(layout.down, rows * ranks, buffers.hidden, is_reference)
    if shared is None:
        return
    if buffers.shared_rows is None or buffers.shared_hidden is None:
        raise ValueError("a shared expert needs buffers.shared_hidden and buffers.shared_rows")
    down = shared.down.layout
    if down.rows != hidden or tuple(shared.gate_up.shape) != (rows, 2 * down.columns) or shared.gate_up.stride(1) != 1:
        found = list(shared.gate_up.shape)
        raise ValueError(f"a shared down of {down.rows} x {down.columns} does not fit gate_up {found} of {rows} rows")
    check_rows(down, rows, buffers.shared_hidden, is_reference)
