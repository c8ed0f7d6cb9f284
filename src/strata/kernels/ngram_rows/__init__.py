"""The n-gram embedding of a window's rows, before and behind its two matrices, and its commit. Knows no arithmetic.

    ngram_gather      the last tokens -> hash -> rows of the table [rows, embed_dim]
    or, of a table in a file: ngram_ask, as early as the tokens are known, and ngram_collect
    (two matrices)    key [rows, width], value [rows, hidden]
    ngram_finish      gates, values, dilated convolution -> what is added to the streams [rows, width]

A window reads the state and leaves it; its `normed` rows are what a commit moves into the tails, so keep them.
"""

import torch

from strata.kernels.ngram_rows.arguments import (
    AskedTable,
    NgramHash,
    NgramRowsShape,
    NgramVectors,
    check_ask,
    check_collect,
    check_commit,
    check_finish,
    check_gather,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.kernels.window_rows import WindowRows
from strata.quant.packed import PackedMatrix

__all__ = [
    "AskedTable",
    "NgramHash",
    "NgramRowsShape",
    "NgramVectors",
    "commit_ngram",
    "ngram_ask",
    "ngram_collect",
    "ngram_finish",
    "ngram_gather",
]


def ngram_gather(rows: WindowRows, history: torch.Tensor, table: PackedMatrix, hash: NgramHash, out: RowsOut) -> None:
    """Decode the table rows that every row's n-grams hash to, head after head -> out [rows, heads * table columns].

    history int32 [slots, ngram_size - 1]: each slot's tokens before the window. The table lies on the computing device
    or in pinned host memory, which a GPU reads in place. out.quantized needs out.plain beside it where 32 does not
    divide the table's columns. Unused rows are left alone. Raises ValueError for other shapes or types.
    """
    check_gather(rows, history, table, hash, out)
    if takes_reference(history):
        from strata.kernels.ngram_rows.reference import ngram_gather as by_definition

        by_definition(rows, history, table, hash, out)
    else:
        from strata.kernels.ngram_rows.triton import ngram_gather as by_kernels

        by_kernels(rows, history, table, hash, out)


def ngram_ask(rows: WindowRows, history: torch.Tensor, hash: NgramHash, asked: AskedTable) -> None:
    """Ask for the table rows that every row's n-grams hash to; whoever answers reads them meanwhile.

    history as for `ngram_gather`. If a row is used the request is written and the door rises to a new `state.number`;
    if none is, nobody is asked. A gate is open behind it unless somebody is. Raises ValueError for other shapes or
    types.
    """
    check_ask(rows, history, hash, asked)
    if takes_reference(history):
        from strata.kernels.ngram_rows.reference import ngram_ask as by_definition

        by_definition(rows, history, hash, asked)
    else:
        from strata.kernels.ngram_rows.request import ngram_ask as by_kernel

        by_kernel(rows, history, hash, asked)


def ngram_collect(rows: WindowRows, asked: AskedTable, out: RowsOut) -> None:
    """Wait for the rows that `ngram_ask` asked for, and copy them to out [rows, heads * table columns].

    Waits until `done` reaches `state.number`, as it has where a wait at the gate stands before this; a `done` that was
    raised by a stop ends every wait, and what is in the mailbox is then copied. Unused rows are left alone. Raises
    ValueError for other shapes or types.
    """
    check_collect(rows, asked, out)
    if takes_reference(rows.tokens):
        from strata.kernels.ngram_rows.reference import ngram_collect as by_definition

        by_definition(rows, asked, out)
    else:
        from strata.kernels.ngram_rows.collect import ngram_collect as by_kernel

        by_kernel(rows, asked, out)


def ngram_finish(
    key: torch.Tensor,
    value: torch.Tensor,
    query_normed: torch.Tensor,
    rows: WindowRows,
    tail: torch.Tensor,
    vectors: NgramVectors,
    shape: NgramRowsShape,
    normed: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """What the n-grams add to the streams: key [rows, width], value [rows, hidden] (products) -> out [rows, width].

    query_normed [rows, width]: every stream's norm times the query's scale. tail [slots, tail_rows, width] is read;
    normed [rows, width] is written: what the convolution reads of these rows, for `commit_ngram`. Unused rows are left
    alone. Raises ValueError for other shapes or types.
    """
    products = (key, value, query_normed)
    check_finish(products, rows, tail, vectors, shape, normed, out)
    if takes_reference(key):
        from strata.kernels.ngram_rows.reference import ngram_finish as by_definition

        by_definition(products, rows, tail, vectors, shape, normed, out)
    else:
        from strata.kernels.ngram_rows.triton import ngram_finish as by_kernels

        by_kernels(products, rows, tail, vectors, shape, normed, out)


def commit_ngram(
    history: torch.Tensor, tails: torch.Tensor, normed: torch.Tensor, rows: WindowRows, accepted: torch.Tensor
) -> None:
    """Move the first `accepted` (int32 [segments]) rows of every segment into its slot's history and tails.

    history int32 [slots, ngram_size - 1], tails [layers, slots, tail_rows, width], normed [layers, rows, width] of all
    layers. A segment of 0 accepted rows, or of slot -1, changes nothing.
    """
    check_commit(history, tails, normed, rows, accepted)
    if takes_reference(history):
        from strata.kernels.ngram_rows.reference import commit_ngram as by_definition

        by_definition(history, tails, normed, rows, accepted)
    else:
        from strata.kernels.ngram_rows.triton import commit_ngram as by_kernels

        by_kernels(history, tails, normed, rows, accepted)
