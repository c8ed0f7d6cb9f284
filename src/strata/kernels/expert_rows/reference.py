"""The definition of the expert arithmetic in torch on the CPU: every other path computes these bits.

Knows packed matrices and the order of every operation (docs/storage-codes.md); knows no thread and no device. Written
to be read and to be right; it is fast enough for tests.
"""

from dataclasses import dataclass

import torch

from strata.quant.layout import BLOCK_COLUMNS, MatrixLayout
from strata.quant.packed import PackedMatrix, decode_rows, integers_of, min_values, scale_values

LANES = 8  # of integer codes: block b belongs to lane b mod 8
FLOAT_LANES = 16  # of float codes: element k belongs to lane k mod 16
TINY = 2.0**-100  # a block whose largest activation is smaller counts as zero

# exp(x): n = round(x / ln 2) by adding and taking away 1.5 * 2^23, x - n ln 2 in two steps, a polynomial, times 2^n.
EXP_LOW, EXP_HIGH = -87.0, 88.0
LOG2_E = 1.44269504
ROUNDER = 12582912.0
LN2_HIGH, LN2_LOW = 0.693145752, 1.42860677e-6
EXP_COEFFICIENTS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)  # each rounded to float32


@dataclass(frozen=True)
class QuantizedRows:
    """Activations in blocks of 32: q * d."""

    q: torch.Tensor  # [n, blocks, 32] float32 holding integers -127 .. 127
    d: torch.Tensor  # [n, blocks] float32


def fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c in float32, rounded once.

    A product of two float32 is exact in float64 (48 of 53 bits). The sum is rounded to odd - an inexact sum gets an odd
    last bit - and then rounding it to float32 cannot round twice in the same direction wrongly.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    # What the addition lost, exactly (Knuth's two-sum).
    virtual = total - product
    lost = (product - (total - virtual)) + (addend - virtual)
    if not lost.any():  # as a rule: a few bits times a few bits, added to something of their size
        return total.float()
    bits = total.contiguous().view(torch.int64)
    away_from_zero = (lost > 0) == (total > 0)
    odd = torch.where(away_from_zero, bits + 1, bits - 1)
    needs_odd = (lost != 0) & ((bits & 1) == 0)
    return torch.where(needs_odd, odd, bits).view(torch.float64).float()


def exp(x: torch.Tensor) -> torch.Tensor:
    """e^x of float32 by multiplications, additions and fma alone; relative error below 3e-7 from -87 to 88."""
    one = torch.ones_like(x)
    clamped = x.clamp(EXP_LOW, EXP_HIGH)
    n = (clamped * (one * LOG2_E) + ROUNDER) - ROUNDER
    r = fma(n, one * -LN2_HIGH, clamped)
    r = fma(n, one * -LN2_LOW, r)
    value = one * EXP_COEFFICIENTS[0]
    for coefficient in EXP_COEFFICIENTS[1:]:
        value = fma(value, r, one * coefficient)
    return value * ((n.int() + 127) << 23).view(torch.float32)


def quantize_rows(x: torch.Tensor) -> QuantizedRows:
    """Activations x [n, columns] float32 -> blocks of 32 integers with a scale each."""
    blocks = x.reshape(x.shape[0], -1, BLOCK_COLUMNS)
    largest = blocks.abs().amax(dim=-1)
    is_zero = largest < TINY
    d = torch.where(is_zero, 0.0, largest / torch.full_like(largest, 127.0))
    inverse = torch.where(is_zero, 0.0, torch.ones_like(d) / torch.where(is_zero, 1.0, d))
    q = (blocks * inverse[..., None]).round().clamp(-127, 127)
    return QuantizedRows(q, d)


def matrix_rows(matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    """x [n, columns] float32 -> [n, rows] float32: every row of the matrix times every row of x."""
    layout = matrix.layout
    if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != layout.columns:
        raise ValueError(f"rows must be float32 [n, {layout.columns}], not {x.dtype} {list(x.shape)}")
    if x.shape[0] == 0:
        return x.new_zeros(0, layout.rows)
    if layout.code.is_float:
        sums = _float_sums(torch.from_numpy(decode_rows(layout, matrix.to_rows(), 1.0)), x)
    else:
        sums = _integer_sums(matrix, quantize_rows(x))
    return sums if matrix.post_scale == 1.0 else sums * torch.full_like(sums, matrix.post_scale)


def expert_rows(gate: PackedMatrix, up: PackedMatrix, down: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    """One expert for rows x [n, hidden] -> [n, hidden]: down(silu(gate) * up)."""
    return matrix_rows(down, silu_times(matrix_rows(gate, x), matrix_rows(up, x)))


def silu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """(g / (1 + exp(-g))) * u."""
    return (gate / (torch.ones_like(gate) + exp(-gate))) * up


def combine(
    rows: torch.Tensor,
    weights: torch.Tensor,
    is_computed: torch.Tensor,
    shared: torch.Tensor | None = None,
    shared_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """rows [n, rank, hidden] with router weights [n, rank] -> [n, hidden].

    fma(weight, row) in the order of the ranks from +0; ranks that are not computed [n, rank] are left out, whatever
    their memory holds. Then `shared` [n, hidden] as one rank more, of weight `shared_weights` [n], its gate, or 1.
    """
    total = rows.new_zeros(rows.shape[0], rows.shape[2])
    for rank in range(rows.shape[1]):
        added = fma(weights[:, rank, None].expand_as(total), rows[:, rank], total)
        total = torch.where(is_computed[:, rank, None], added, total)
    if shared is None:
        return total
    if shared_weights is None:
        return total + shared  # fma(1, shared, total)
    return fma(shared_weights[:, None].expand_as(total), shared, total)


def _integer_sums(matrix: PackedMatrix, rows: QuantizedRows) -> torch.Tensor:
    """[n, matrix rows]: lanes of blocks, each block's exact sums first, then its minimums."""
    layout, arrays = matrix.layout, matrix.to_rows()
    part = min(layout.sub_block, BLOCK_COLUMNS)  # columns of one exact sum
    weights = torch.from_numpy(integers_of(layout, arrays)).float().reshape(layout.rows, -1, part)
    q = rows.q.reshape(rows.q.shape[0], -1, part)
    # Sums of at most 32 products below 2^14 are whole numbers below 2^24: exact in float32 in any order.
    sums = torch.bmm(q.transpose(0, 1), weights.permute(1, 2, 0)).permute(1, 2, 0)  # [n, matrix rows, parts]
    q_sums = q.sum(dim=-1)  # [n, parts]
    scales = _by_part(layout, torch.from_numpy(scale_values(layout, arrays)), part)  # [matrix rows, parts]
    found = min_values(layout, arrays)
    minimums = None if found is None else _by_part(layout, torch.from_numpy(found), part)
    lanes = sums.new_zeros(*sums.shape[:2], LANES)
    per_block = BLOCK_COLUMNS // part
    for first in range(0, layout.blocks, LANES):
        width = min(LANES, layout.blocks - first)
        dx = rows.d[:, None, first : first + width]
        lane = lanes[..., :width]
        for which in range(per_block):
            parts = slice(first * per_block + which, (first + width) * per_block, per_block)
            lane = fma(scales[None, :, parts] * dx, sums[..., parts], lane)
        for which in range(per_block if minimums is not None else 0):
            assert minimums is not None
            parts = slice(first * per_block + which, (first + width) * per_block, per_block)
            lane = fma(-(minimums[None, :, parts] * dx), q_sums[:, None, parts], lane)
        lanes[..., :width] = lane
    return _tree(lanes)


def _by_part(layout: MatrixLayout, values: torch.Tensor, part: int) -> torch.Tensor:
    """[rows, sub_blocks] -> [rows, parts]: a scale of 64 columns belongs to two blocks."""
    return values.repeat_interleave(layout.sub_block // part, dim=1)


def _float_sums(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """weights [rows, columns], x [n, columns] -> [n, rows]: lanes of elements in rising order."""
    lanes = x.new_zeros(x.shape[0], weights.shape[0], FLOAT_LANES)
    for first in range(0, weights.shape[1], FLOAT_LANES):
        columns = slice(first, min(first + FLOAT_LANES, weights.shape[1]))
        width = columns.stop - first
        lanes[..., :width] = fma(weights[None, :, columns], x[:, None, columns], lanes[..., :width])
    return _tree(lanes)


def _tree(lanes: torch.Tensor) -> torch.Tensor:
    """[.., lanes] -> [..]: lane i plus lane i + half, until one is left."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]
