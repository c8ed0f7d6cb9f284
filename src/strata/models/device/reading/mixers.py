"""The launches of a chunk's mixer and of its n-gram embedding. Knows their order and memory; no arithmetic."""

from dataclasses import fields, replace

import torch

from strata.kernels.attention_read import AttentionReadWork, read_attend, read_choose
from strata.kernels.attention_rows import AttentionCells, AttentionRowsShape, ProjectedRows, attention_prepare
from strata.kernels.delta_read import CHUNK, DeltaReadWork, delta_read
from strata.kernels.delta_rows import DeltaState
from strata.kernels.expert_plan import wait_at_gate
from strata.kernels.ngram_rows import (
    AskedTable,
    commit_ngram,
    ngram_ask,
    ngram_collect,
    ngram_finish,
    ngram_gather,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.read_streams import add_norm
from strata.kernels.residual_streams.additions import MixerRows, Nothing
from strata.kernels.window_rows import WindowRows
from strata.models.device.description import AttentionMixer, DeltaMixer, NgramLayer
from strata.models.device.reading.rows import Run
from strata.models.device.reading.walk import NORM_STEP, ReadInput, ReadWalk, run_of

ASK_STEP = "n-grams: ask"  # of whoever reads a table's files
ATTENDED = 1 << 38  # rows * cells * values of a query that attend together: about 4 ms of an H200
DELTA_ROWS = 2048  # that pass the rule together, so that what its launches leave for each other stays small


def append_delta(walk: ReadWalk, mixer: DeltaMixer, x: ReadInput) -> None:
    """A gated delta net; the state is moved behind the chunk's rows."""
    chunk, room, state, shape = walk.chunk, walk.room, walk.state, walk.model.delta_shape
    assert shape is not None
    projected = room.take("wide", chunk.count, shape.projected_width)
    out = room.take("mixer values", chunk.count, shape.value_width, dtype=torch.bfloat16)
    of_layer = DeltaState(state.delta[mixer.index], state.conv_tail[mixer.index])
    work = _delta_work(walk)
    walk.multiply("delta: in", mixer.in_all.parts, x.rows, projected)
    for run in chunk.runs:
        rows, position = slice(run.start, run.stop), chunk.position + run.start
        walk.launch(
            "delta: rule", delta_read, projected[rows], position, chunk.slot, of_layer, mixer.vectors, shape, work,
            out[rows], mixer.out.block_order,
        )  # fmt: skip
        kept = walk.kept.get(run.stop)
        if kept is not None:
            walk.launch("delta: keep", _copy, of_layer.delta[chunk.slot], kept.delta[mixer.index])
            walk.launch("delta: keep", _copy, of_layer.conv_tail[chunk.slot], kept.conv_tail[mixer.index])
    output = room.take("output", chunk.count, walk.model.hidden)
    walk.multiply("delta: out", mixer.out.parts, out, output)
    walk.addition = MixerRows(output, x.strengths)


def append_attention(walk: ReadWalk, mixer: AttentionMixer, x: ReadInput) -> None:
    """Causal attention; the rows' cells are written at their positions."""
    chunk, room, shape = walk.chunk, walk.room, mixer.layer.shape
    cells = walk.state.attention_cells(mixer.index)
    both = room.take("wide", chunk.count, mixer.projections.shape[0])
    index_rows = None if shape.indexer is None else both[:, shape.projected_width :]
    projected = ProjectedRows(both[:, : shape.projected_width], index_rows)
    is_paged = cells.pages is not None
    work = AttentionReadWork.make(chunk.count, shape, cells.count, cells.kind, room.take, is_paged=is_paged)
    attended = room.take("mixer values", chunk.count, shape.query_width, dtype=torch.bfloat16)
    walk.multiply("attention: in", mixer.projections.parts, x.rows, both)
    rows = chunk.window(Run(0, chunk.count))
    walk.launch("attention: prepare", attention_prepare, projected, rows, walk.rotation, cells, mixer.layer, work)
    where = (chunk.position, chunk.slot, cells, shape, work)
    if shape.indexer is not None:
        walk.launch("attention: choose", read_choose, *where)
    for run in attend_runs(chunk.position, chunk.count, shape, cells):
        walk.pause()
        _append_attend(walk, run, projected, (cells, shape, work), attended)
    output = room.take("output", chunk.count, walk.model.hidden)
    walk.multiply("attention: out", mixer.out.parts, attended, output)
    walk.addition = MixerRows(output, x.strengths)


def attend_runs(position: int, count: int, shape: AttentionRowsShape, cells: AttentionCells) -> list[Run]:
    """Rows that attend together: all of them, or where each sees every cell as many as take a few milliseconds.

    Cut at multiples of 64 positions; cells that are decoded first are decoded for all rows together.
    """
    if shape.indexer is not None or not cells.are_multiplied_in_place:
        return [Run(0, count)]
    rows = max(CHUNK, ATTENDED // (shape.query_width * (position + count)) // CHUNK * CHUNK)
    starts = range(-(position % CHUNK), count, rows)
    return [Run(max(0, start), min(count, start + rows)) for start in starts]


def _append_attend(
    walk: ReadWalk,
    run: Run,
    projected: ProjectedRows,
    layer: tuple[AttentionCells, AttentionRowsShape, AttentionReadWork],
    attended: torch.Tensor,
) -> None:
    rows, (cells, shape, work) = slice(run.start, run.stop), layer
    if run.count < walk.chunk.count:
        projected, work = ProjectedRows(projected.qkv[rows], None), replace(work, query=work.query[rows])
    where = (walk.chunk.position + run.start, walk.chunk.slot, cells, shape, work)
    walk.launch("attention: attend", read_attend, projected, *where, attended[rows])


def append_ngram(walk: ReadWalk, ngram: NgramLayer) -> None:
    """The n-gram embedding, which is added to the streams in front of the layer, some rows after others.

    The tails are moved behind the rows; the history is not, but for a copy of it: other layers need it.
    """
    chunk, room, model, state = walk.chunk, walk.room, walk.model, walk.state
    history, tails = history_of(walk), state.ngram_tail[ngram.index : ngram.index + 1]
    addition, walk.addition = walk.addition, Nothing()
    walk.launch("n-grams: history", _copy, state.history, history)
    for run in chunk.ngram_runs:
        rows, streams = chunk.window(run), walk.streams[run.start : run.stop]
        query, key, values, normed = room.take("wide", 4, run.count, model.stream_width)
        scale = ngram.query_scale
        walk.launch(
            f"n-grams: {NORM_STEP}", add_norm, streams, run_of(addition, run), scale, model.eps, model.streams, query
        )  # fmt: skip
        width = ngram.table_width
        found = room.take("n-gram rows", run.count, width)
        rounded = room.take("n-gram rounded", run.count, width, dtype=torch.bfloat16)
        value = room.take("n-gram value", run.count, model.hidden)
        _append_table_rows(walk, ngram, rows, history, RowsOut(found, None))
        walk.launch("n-grams: round", _copy, found, rounded)
        walk.multiply("n-grams: key", ngram.key.parts, rounded, key)
        walk.multiply("n-grams: value", ngram.value.parts, rounded, value)
        tail, vectors = state.ngram_tail[ngram.index], ngram.vectors
        walk.launch(
            "n-grams: finish", ngram_finish, key, value, query, rows, tail, vectors, ngram.shape, normed, values
        )
        walk.launch("n-grams: move", commit_ngram, history, tails, normed[None], rows, rows.segment_counts)
        walk.launch("n-grams: add", streams.add_, values)
        kept = walk.kept.get(run.stop)
        if kept is not None:
            walk.launch("n-grams: keep", _copy, tail[chunk.slot], kept.ngram_tail[ngram.index])
            walk.launch("n-grams: keep", _copy, history[chunk.slot : chunk.slot + 1], kept.history)


def _append_table_rows(
    walk: ReadWalk, ngram: NgramLayer, rows: WindowRows, history: torch.Tensor, found: RowsOut
) -> None:
    """The rows' rows of the table, from memory or from whoever reads the files."""
    table = ngram.table
    if isinstance(table, AskedTable):
        walk.launch(ASK_STEP, ngram_ask, rows, history, ngram.hash, table)
        if table.mailbox.gate is not None:
            walk.launch("n-grams: wait", wait_at_gate, table.mailbox, table.state)
        walk.launch("n-grams: collect", ngram_collect, rows, table, found)
    else:
        walk.launch("n-grams: gather", ngram_gather, rows, history, table, ngram.hash, found)


def history_of(walk: ReadWalk) -> torch.Tensor:
    """A copy of all slots' history, in which the chunk's slot is moved on by every n-gram layer."""
    return walk.room.take("history", *walk.state.history.shape, dtype=torch.int32)


def _delta_work(walk: ReadWalk) -> DeltaReadWork:
    shape = walk.model.delta_shape
    assert shape is not None
    rows = min(DELTA_ROWS, -(-walk.chunk.capacity // CHUNK) * CHUNK)
    sizes = DeltaReadWork.empty(rows, shape, "meta")
    parts = {field.name: getattr(sizes, field.name) for field in fields(sizes)}
    return DeltaReadWork(
        **{name: walk.room.take(f"delta {name}", *each.shape, dtype=each.dtype) for name, each in parts.items()}
    )


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)
