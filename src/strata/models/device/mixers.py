"""The launches of a layer's mixer and of its n-gram embedding. Knows their order and buffers; no arithmetic."""

from collections.abc import Sequence

from strata.kernels.attention_rows import (
    ProjectedRows,
    attention_attend,
    attention_choose,
    attention_prepare,
)
from strata.kernels.cell_pages import resolve_pages
from strata.kernels.delta_rows import DeltaRowsWork, DeltaState, delta_rows
from strata.kernels.expert_plan import wait_at_gate
from strata.kernels.ngram_rows import AskedTable, ngram_ask, ngram_collect, ngram_finish, ngram_gather
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.residual_streams import MixerRows, Values
from strata.models.device.description import AttentionMixer, DeltaMixer, NgramLayer
from strata.models.device.walk import LayerInput, Walk
from strata.quant.layout import BLOCK_COLUMNS, MatrixLayout


def append_delta(walk: Walk, mixer: DeltaMixer, x: LayerInput) -> None:
    """A gated delta net; its projected rows are kept for the commit. The state of certain segments is written."""
    buffers = walk.buffers
    shape, state = buffers.model.delta_shape, buffers.state
    assert shape is not None
    projected = buffers.stored_delta[mixer.index]
    walk.multiply("delta: in", mixer.in_all, x.rows, projected)
    needs_plain = shape.value_dim % BLOCK_COLUMNS != 0
    mixed = buffers.room("delta out", [part.layout for part in mixer.out.parts], needs_plain)
    slot_states = DeltaState(state.delta[mixer.index], state.conv_tail[mixer.index])
    inputs = buffers.take("delta rule inputs", shape.inputs_width)
    work = DeltaRowsWork(inputs, buffers.take("delta recalled", shape.value_width))
    walk.launch(
        "delta: rule", delta_rows, projected, buffers.rows, walk.lengths, slot_states, mixer.vectors, shape, work,
        mixed, mixer.out.block_order,
    )  # fmt: skip
    output = buffers.take("mixer output", buffers.model.hidden)
    walk.multiply("delta: out", mixer.out, mixed, output)
    walk.addition = MixerRows(output, x.strengths)


def append_attention(walk: Walk, mixer: AttentionMixer, x: LayerInput) -> None:
    """Causal attention; its cells are written at the rows' own positions."""
    buffers, shape = walk.buffers, mixer.layer.shape
    cells = buffers.state.attention_cells(mixer.index)
    both = buffers.take("attention projections", mixer.projections.shape[0])
    projected = ProjectedRows(both)
    if shape.indexer is not None:
        projected = ProjectedRows(both[:, : shape.projected_width], both[:, shape.projected_width :])
    work = buffers.attention_work(shape)
    walk.multiply("attention: in", mixer.projections, x.rows, both)
    walk.launch(
        "attention: prepare", attention_prepare, projected, buffers.rows, buffers.rotation, cells, mixer.layer, work
    )
    if shape.indexer is not None:
        walk.launch("attention: choose", attention_choose, buffers.rows, cells, shape, work)
    if cells.pages is not None and work.choice is not None:
        missing = buffers.page_work(cells.pages, work.choice.chosen.shape[1])
        walk.launch("attention: pages", resolve_pages, buffers.rows, work.choice, cells, cells.pages, missing)
    attended = buffers.room("attended", [part.layout for part in mixer.out.parts])
    walk.launch("attention: attend", attention_attend, projected, buffers.rows, cells, shape, work, attended)
    output = buffers.take("mixer output", buffers.model.hidden)
    walk.multiply("attention: out", mixer.out, attended, output)
    walk.addition = MixerRows(output, x.strengths)


def append_asking(walk: Walk, ngram: NgramLayer) -> None:
    """Asking for an n-gram layer's rows, as early as the tokens are known, if its table lies in files."""
    if isinstance(ngram.table, AskedTable):
        rows, history = walk.buffers.rows, walk.buffers.state.history
        walk.launch("n-grams: ask", ngram_ask, rows, history, ngram.hash, ngram.table)


def append_ngram(walk: Walk, ngram: NgramLayer) -> None:
    """The n-gram embedding, which is added to the streams in front of the layer."""
    buffers, width = walk.buffers, walk.buffers.model.stream_width
    state, rows = buffers.state, buffers.rows
    query = buffers.take("n-gram query", width)
    walk.norm("n-grams: add, norm", ngram.query_scale, RowsOut(query, None))
    layouts = [part.layout for matrices in (ngram.key, ngram.value) for part in matrices.parts]
    embeddings = _append_table_rows(walk, ngram, layouts)
    key, value = buffers.take("n-gram key", width), buffers.take("n-gram value", buffers.model.hidden)
    walk.multiply("n-grams: key", ngram.key, embeddings, key)
    walk.multiply("n-grams: value", ngram.value, embeddings, value)
    values, normed = buffers.take("n-gram values", width), buffers.stored_ngrams[ngram.index]
    walk.launch(
        "n-grams: finish", ngram_finish, key, value, query, rows, state.ngram_tail[ngram.index],
        ngram.vectors, ngram.shape, normed, values,
    )  # fmt: skip
    walk.addition = Values(values)


def _append_table_rows(walk: Walk, ngram: NgramLayer, layouts: Sequence[MatrixLayout]) -> RowsOut:
    """The rows of the table, from memory or from whoever reads the files, for matrices of these layouts."""
    buffers, table, rows = walk.buffers, ngram.table, walk.buffers.rows
    if isinstance(table, AskedTable):
        embeddings = buffers.room("n-gram rows", layouts)
        if table.mailbox.gate is not None:
            walk.launch("n-grams: wait", wait_at_gate, table.mailbox, table.state)
        walk.launch("n-grams: collect", ngram_collect, rows, table, embeddings)
    else:
        embeddings = buffers.room("n-gram rows", layouts, table.layout.columns % BLOCK_COLUMNS != 0)
        walk.launch("n-grams: gather", ngram_gather, rows, buffers.state.history, table, ngram.hash, embeddings)
    return embeddings
