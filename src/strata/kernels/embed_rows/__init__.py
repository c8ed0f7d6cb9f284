"""Tokens to rows of a packed table, once for every residual stream. Checks and chooses the road; knows no layer."""

from collections.abc import Sequence

import torch

from strata.kernels.checks import check_tensor
from strata.kernels.roads import takes_reference
from strata.quant.packed import PackedMatrix


def embed_rows(table: Sequence[PackedMatrix], tokens: torch.Tensor, streams_out: torch.Tensor, streams: int) -> None:
    """streams_out float32 [rows, streams * hidden]: every stream of a row becomes row `token` of the table.

    table: matrices of `hidden` columns under one another, of one code or several; tokens int32 [rows]. The values have
    the bits of `PackedMatrix.decode()`. A token that the table lacks gives NaN, so that a row nobody uses may hold any
    token and a wrong one cannot go unseen. Launches only, one kernel a matrix: safe to capture in a graph. Raises
    ValueError for other shapes or types.
    """
    if not table:
        raise ValueError("table is empty: give at least one matrix")
    (rows,), hidden = tokens.shape, table[0].layout.columns
    for matrix in table:
        columns = matrix.layout.columns
        if columns != hidden:
            raise ValueError(f"table has matrices of {hidden} and of {columns} columns; all must have the same")
    check_tensor("tokens", tokens, (rows,), torch.int32)
    check_tensor("streams_out", streams_out, (rows, streams * hidden))
    if rows == 0:
        return
    if takes_reference(tokens):
        from strata.kernels.embed_rows.reference import embed_rows as by_definition

        by_definition(table, tokens, streams_out, streams)
        return
    from strata.kernels.embed_rows.triton import embed_rows as by_kernels

    by_kernels(table, tokens, streams_out, streams)
