"""Residual streams: add what the last layer left, norm each stream. Checks, and chooses the road; knows no layer."""

import torch

from strata.kernels.checks import check_rows_out, check_tensor
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.residual_streams.additions import Addition, ExpertRows, MixerRows, Nothing, Values
from strata.kernels.roads import takes_reference
from strata.quant.layout import BLOCK_COLUMNS

__all__ = ["Addition", "ExpertRows", "MixerRows", "Nothing", "Values", "add_and_norm"]


def add_and_norm(
    streams: torch.Tensor, addition: Addition, norm_scale: torch.Tensor, eps: float, streams_count: int, out: RowsOut
) -> None:
    """streams float32 [rows, streams_count * hidden] += addition, in place; out = the RMS norm of every stream * scale.

    norm_scale float32 [streams_count * hidden]; `out` has room for [rows, streams_count * hidden]. A row's bits depend
    on that row alone. Rows that are not used are computed from whatever they hold. Launches only, one kernel: safe to
    capture in a graph. Raises ValueError for other shapes or types.
    """
    rows, width = streams.shape
    if streams_count < 1 or width % streams_count:
        raise ValueError(f"streams_count {streams_count} must divide the {width} columns of the streams")
    check_tensor("streams", streams, (rows, width))
    check_tensor("norm_scale", norm_scale, (width,))
    check_rows_out("out", out, rows, width)
    if out.quantized is not None and width // streams_count % BLOCK_COLUMNS:
        raise ValueError(
            f"out.quantized: a stream of {width // streams_count} columns is no whole blocks of {BLOCK_COLUMNS}; "
            "give plain rows"
        )
    _check_addition(addition, rows, streams_count, width // streams_count)
    if rows == 0:
        return
    if takes_reference(streams):
        from strata.kernels.residual_streams.reference import add_and_norm as by_definition

        by_definition(streams, addition, norm_scale, eps, streams_count, out)
        return
    from strata.kernels.residual_streams.triton import add_and_norm as by_kernels

    by_kernels(streams, addition, norm_scale, eps, streams_count, out)


def _check_addition(addition: Addition, rows: int, streams: int, hidden: int) -> None:
    if isinstance(addition, Values):
        check_tensor("values", addition.values, (rows, streams * hidden))
    if isinstance(addition, MixerRows):
        check_tensor("output", addition.output, (rows, hidden))
    if isinstance(addition, ExpertRows):
        ranks = addition.weights.shape[-1]
        check_tensor("by_rank", addition.by_rank, (rows, ranks, hidden))
        check_tensor("weights", addition.weights, (rows, ranks))
        check_tensor("shared", addition.shared, (rows, hidden))
        check_tensor("shared_weights", addition.shared_weights, (rows,))
        if addition.shared is None and addition.shared_weights is not None:
            raise ValueError("shared_weights are given without the rows `shared` that they weigh")
    if isinstance(addition, MixerRows | ExpertRows):
        check_tensor("strengths", addition.strengths, (rows, streams))
        if addition.strengths is None and streams != 1:
            raise ValueError(f"strengths are missing: {streams} streams take an addition each with its own")
