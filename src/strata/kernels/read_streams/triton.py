"""The steps between a prompt's products on a GPU, each one launch that goes once through memory. Knows no checks.

A program has one row, or one stream or a run of columns of one: what it gives depends on that row alone.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.read_streams import ReadAddition
from strata.kernels.residual_streams.additions import MixerRows, Values

MIX_COLUMNS = 1024  # of a program, of each stream
HIDDEN_COLUMNS = 1024
NOTHING, MIXER, VALUES = (tl.constexpr(kind) for kind in range(3))


@triton.jit
def sigmoid_of(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit(do_not_specialize_on_alignment=["strengths"])
def add_norm_kernel(
    streams, added, strengths, norm_scale, out, eps,
    KIND: tl.constexpr, HAS_STRENGTHS: tl.constexpr, STREAMS: tl.constexpr, HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, STREAMS); COLUMNS: a power of two that holds HIDDEN."""
    row, stream = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    is_inside = column < HIDDEN
    at = (row * STREAMS + stream) * HIDDEN + column
    value = tl.load(streams + at, mask=is_inside, other=0.0)
    if KIND != NOTHING:
        source = at if KIND == VALUES else row * HIDDEN + column
        addition = tl.load(added + source, mask=is_inside, other=0.0)
        if HAS_STRENGTHS:
            addition = tl.load(strengths + row * STREAMS + stream) * addition
        value += addition
        tl.store(streams + at, value, mask=is_inside)
    scale = tl.load(norm_scale + stream * HIDDEN + column, mask=is_inside, other=0.0)
    mean_square = tl.sum(value * value, axis=0) * (1.0 / HIDDEN)
    normed = value * (1.0 / tl.sqrt(mean_square + eps)) * scale
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=is_inside)


@triton.jit(do_not_specialize_on_alignment=["strengths"])
def low_gates_kernel(
    shares, low, strengths, STREAMS: tl.constexpr, LOW: tl.constexpr, HAS_STRENGTHS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid (rows); COLUMNS: a power of two that holds a row of shares."""
    WIDTH: tl.constexpr = LOW + STREAMS if HAS_STRENGTHS else LOW
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    value = tl.load(shares + row * WIDTH + column, mask=column < WIDTH, other=0.0) * (1.0 / STREAMS)
    gate = sigmoid_of(value)
    tl.store(low + row * LOW + column, (value * gate).to(tl.bfloat16), mask=column < LOW)
    if HAS_STRENGTHS:
        is_strength = (column >= LOW) & (column < WIDTH)
        tl.store(strengths + row * STREAMS + (column - LOW), 2.0 * gate, mask=is_strength)


@triton.jit
def mix_streams_kernel(
    gates, normed, mixed, STREAMS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, runs of COLUMNS)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = column < HIDDEN
    total = tl.zeros((COLUMNS,), tl.float32)
    for stream in tl.static_range(STREAMS):
        at = (row * STREAMS + stream) * HIDDEN + column
        gate = tl.load(gates + at, mask=is_inside, other=0.0).to(tl.float32)
        total += sigmoid_of(gate) * tl.load(normed + at, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(mixed + row * HIDDEN + column, (total * (1.0 / STREAMS)).to(tl.bfloat16), mask=is_inside)


@triton.jit(do_not_specialize=["row_step"], do_not_specialize_on_alignment=["gate_up"])
def gated_hidden_kernel(gate_up, hidden, row_step, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of gate_up lie `row_step` apart; grid (rows, runs of COLUMNS)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = column < WIDTH
    gate = tl.load(gate_up + row * row_step + column, mask=is_inside, other=0.0)
    up = tl.load(gate_up + row * row_step + WIDTH + column, mask=is_inside, other=0.0)
    value = gate * sigmoid_of(gate) * up
    tl.store(hidden + row * WIDTH + column, value.to(tl.bfloat16), mask=is_inside)


@triton.jit(do_not_specialize_on_alignment=["shares"])
def gate_shares_kernel(x, gate, shares, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr):
    """Grid (rows); COLUMNS: a power of two that holds HIDDEN."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    is_inside = column < HIDDEN
    value = tl.load(x + row * HIDDEN + column, mask=is_inside, other=0.0).to(tl.float32)
    product = value * tl.load(gate + column, mask=is_inside, other=0.0)
    tl.store(shares + row, sigmoid_of(tl.sum(product, axis=0)))


def add_norm(
    streams: torch.Tensor,
    addition: ReadAddition,
    norm_scale: torch.Tensor,
    eps: float,
    streams_count: int,
    out: torch.Tensor,
) -> None:
    """See the package."""
    rows, hidden = streams.shape[0], streams.shape[1] // streams_count
    kind, added, strengths = NOTHING, streams, None
    if isinstance(addition, MixerRows):
        kind, added, strengths = MIXER, addition.output, addition.strengths
    elif isinstance(addition, Values):
        kind, added = VALUES, addition.values
    columns = triton.next_power_of_2(hidden)
    add_norm_kernel[(rows, streams_count)](
        streams, added, streams if strengths is None else strengths, norm_scale, out, eps,
        KIND=kind.value, HAS_STRENGTHS=strengths is not None, STREAMS=streams_count, HIDDEN=hidden, COLUMNS=columns,
        num_warps=_warps(columns), enable_fp_fusion=False,
    )  # fmt: skip


def low_gates(shares: torch.Tensor, streams_count: int, low: torch.Tensor, strengths: torch.Tensor | None) -> None:
    """See the package."""
    rows, width = shares.shape
    low_gates_kernel[(rows,)](
        shares, low, shares if strengths is None else strengths,
        STREAMS=streams_count, LOW=low.shape[1], HAS_STRENGTHS=strengths is not None,
        COLUMNS=triton.next_power_of_2(width), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


def mix_streams(gates: torch.Tensor, normed: torch.Tensor, streams_count: int, mixed: torch.Tensor) -> None:
    """See the package."""
    rows, hidden = mixed.shape
    columns = min(MIX_COLUMNS, triton.next_power_of_2(hidden))
    mix_streams_kernel[(rows, triton.cdiv(hidden, columns))](
        gates, normed, mixed, STREAMS=streams_count, HIDDEN=hidden, COLUMNS=columns,
        num_warps=_warps(columns), enable_fp_fusion=False,
    )  # fmt: skip


def gated_hidden(gate_up: torch.Tensor, hidden: torch.Tensor) -> None:
    """See the package."""
    rows, width = hidden.shape
    columns = min(HIDDEN_COLUMNS, triton.next_power_of_2(width))
    gated_hidden_kernel[(rows, triton.cdiv(width, columns))](
        gate_up, hidden, gate_up.stride(0), WIDTH=width, COLUMNS=columns,
        num_warps=_warps(columns), enable_fp_fusion=False,
    )  # fmt: skip


def gate_shares(x: torch.Tensor, gate: torch.Tensor, shares: torch.Tensor) -> None:
    """See the package."""
    rows, hidden = x.shape
    columns = triton.next_power_of_2(hidden)
    gate_shares_kernel[(rows,)](
        x, gate, shares, HIDDEN=hidden, COLUMNS=columns, num_warps=_warps(columns), enable_fp_fusion=False
    )  # fmt: skip


def _warps(columns: int) -> int:
    """So that a thread has eight values or more."""
    return min(8, max(1, columns // 256))
