"""The n-gram embedding of a window's rows, before and behind its two matrices, and its commit. Knows no arithmetic.

    ngram_gather      the last tokens -> hash -> rows of the table [rows, embed_dim]
    (two matrices)    key [rows, width], value [rows, hidden]
    ngram_finish      gates, values, dilated convolution -> what is added to the streams [rows, width]

A window reads the state and leaves it; its `normed` rows are what a commit moves into the tails, so keep them.
"""

import torch

from strata.kernels.ngram_rows.arguments import (
    NgramHash,
    NgramRowsShape,
    NgramVectors,
    check_commit,
    check_finish,
    check_gather,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.roads import takes_reference
from strata.kernels.window_rows import WindowRows
from strata.quant.packed import PackedMatrix

__all__ = ["NgramHash", "NgramRowsShape", "NgramVectors", "commit_ngram", "ngram_finish", "ngram_gather"]


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
