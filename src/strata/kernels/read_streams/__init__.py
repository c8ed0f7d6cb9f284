"""What lies between the products of a prompt's rows: residual streams, gates, silu. Checks and chooses the road.

Rows are thousands, matrices read them as bfloat16: everything that one of them reads is rounded once, to the nearest
even. A row's bits depend on that row alone. Launches only. Knows no layer.
"""

import torch

from strata.kernels.checks import check_tensor
from strata.kernels.residual_streams.additions import MixerRows, Nothing, Values
from strata.kernels.roads import takes_reference

__all__ = ["ReadAddition", "add_norm", "gate_shares", "gated_hidden", "low_gates", "mix_streams"]

ReadAddition = Nothing | MixerRows | Values


def add_norm(
    streams: torch.Tensor,
    addition: ReadAddition,
    norm_scale: torch.Tensor,
    eps: float,
    streams_count: int,
    out: torch.Tensor,
) -> None:
    """streams float32 [rows, streams_count * hidden] += addition, in place; out = the RMS norm of every stream * scale.

    norm_scale float32 [streams_count * hidden]; out bfloat16 or float32, of the streams' shape. Raises ValueError for
    other shapes or types.
    """
    rows, width = streams.shape
    if streams_count < 1 or width % streams_count:
        raise ValueError(f"streams_count {streams_count} must divide the {width} columns of the streams")
    check_tensor("streams", streams, (rows, width))
    check_tensor("norm_scale", norm_scale, (width,))
    check_tensor("out", out, (rows, width), torch.float32 if out.dtype == torch.float32 else torch.bfloat16)
    if isinstance(addition, Values):
        check_tensor("values", addition.values, (rows, width))
    if isinstance(addition, MixerRows):
        check_tensor("output", addition.output, (rows, width // streams_count))
        check_tensor("strengths", addition.strengths, (rows, streams_count))
        if addition.strengths is None and streams_count != 1:
            raise ValueError(f"strengths are missing: {streams_count} streams take an addition each with its own")
    if takes_reference(streams):
        from strata.kernels.read_streams.reference import add_norm as by_definition

        by_definition(streams, addition, norm_scale, eps, streams_count, out)
        return
    from strata.kernels.read_streams.triton import add_norm as by_kernels

    by_kernels(streams, addition, norm_scale, eps, streams_count, out)


def low_gates(shares: torch.Tensor, streams_count: int, low: torch.Tensor, strengths: torch.Tensor | None) -> None:
    """What the gates and the write that follows are made of.

    shares float32 [rows, low_rank (+ streams_count if there are strengths)]: the normed streams' product;
    low = silu(shares[:, :low_rank] / streams) bfloat16, strengths = 2 sigmoid(the rest / streams) float32. Raises
    ValueError for other shapes or types.
    """
    rows, width = shares.shape
    low_rank = width - (0 if strengths is None else streams_count)
    check_tensor("shares", shares, (rows, width))
    check_tensor("low", low, (rows, low_rank), torch.bfloat16)
    check_tensor("strengths", strengths, (rows, streams_count))
    if takes_reference(shares):
        from strata.kernels.read_streams.reference import low_gates as by_definition

        by_definition(shares, streams_count, low, strengths)
        return
    from strata.kernels.read_streams.triton import low_gates as by_kernels

    by_kernels(shares, streams_count, low, strengths)


def mix_streams(gates: torch.Tensor, normed: torch.Tensor, streams_count: int, mixed: torch.Tensor) -> None:
    """mixed bfloat16 [rows, hidden] = the mean over the streams of sigmoid(gates) * normed.

    gates and normed bfloat16 [rows, streams_count * hidden]. Raises ValueError for other shapes or types.
    """
    rows, width = normed.shape
    if streams_count < 1 or width % streams_count:
        raise ValueError(f"streams_count {streams_count} must divide the {width} columns of the streams")
    check_tensor("gates", gates, (rows, width), torch.bfloat16)
    check_tensor("normed", normed, (rows, width), torch.bfloat16)
    check_tensor("mixed", mixed, (rows, width // streams_count), torch.bfloat16)
    if takes_reference(gates):
        from strata.kernels.read_streams.reference import mix_streams as by_definition

        by_definition(gates, normed, streams_count, mixed)
        return
    from strata.kernels.read_streams.triton import mix_streams as by_kernels

    by_kernels(gates, normed, streams_count, mixed)


def gated_hidden(gate_up: torch.Tensor, hidden: torch.Tensor) -> None:
    """hidden bfloat16 [rows, width] = silu(gate) * up of gate_up float32 [rows, 2 * width] of any row stride.

    Raises ValueError for other shapes or types.
    """
    rows, width = hidden.shape
    _check_strided("gate_up", gate_up, rows, 2 * width)
    check_tensor("hidden", hidden, (rows, width), torch.bfloat16)
    if takes_reference(gate_up):
        from strata.kernels.read_streams.reference import gated_hidden as by_definition

        by_definition(gate_up, hidden)
        return
    from strata.kernels.read_streams.triton import gated_hidden as by_kernels

    by_kernels(gate_up, hidden)


def gate_shares(x: torch.Tensor, gate: torch.Tensor, shares: torch.Tensor) -> None:
    """shares float32 [rows] = sigmoid(x . gate) of x bfloat16 [rows, hidden] and gate float32 [hidden].

    Raises ValueError for other shapes or types.
    """
    rows, hidden = x.shape
    check_tensor("x", x, (rows, hidden), torch.bfloat16)
    check_tensor("gate", gate, (hidden,))
    check_tensor("shares", shares, (rows,))
    if takes_reference(x):
        from strata.kernels.read_streams.reference import gate_shares as by_definition

        by_definition(x, gate, shares)
        return
    from strata.kernels.read_streams.triton import gate_shares as by_kernels

    by_kernels(x, gate, shares)


def _check_strided(name: str, tensor: torch.Tensor, rows: int, columns: int) -> None:
    if tensor.dtype != torch.float32 or tuple(tensor.shape) != (rows, columns) or tensor.stride(1) != 1:
        raise ValueError(f"{name} must be float32 [{rows}, {columns}], not {tensor.dtype} {list(tensor.shape)}")
