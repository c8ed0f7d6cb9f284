"""Products of float32 rows with stored cells on the matrix units, for the attention of windows. Knows no softmax.

Cells of bf16 and levels of 8 and 4 bits are bfloat16 without loss: a float32 factor is three of them, so products are
exact, and a group's scale multiplies their sum. Cells of f32 take three products of tf32, which leave out 2^-20.

`zero` is a number that is loaded behind the barrier of `attend.py`: what needs it is not made before all was asked for.
What a product needs is made before the first product: it then lies in shared memory behind one wait for all warps.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_rows.levels import high_levels, levels_of_bytes, low_levels
from strata.kernels.stored_cells import groups_of, has_scales


@triton.jit
def halves(values, zero):
    """float32 -> the nearest with the 10 bits that matrix units read behind the point, and what is left of it.

    For finite values. Of what is left the units read 10 bits more.
    """
    nearest = ((values.to(tl.int32, bitcast=True) + (0x1000 + zero)) & -0x2000).to(tl.float32, bitcast=True)
    return nearest, values - nearest


@triton.jit
def thirds(values, zero):
    """Finite float32 -> three bfloat16 whose sum it is, the largest first."""
    half = 0x8000 + zero
    first = ((values.to(tl.int32, bitcast=True) + half) & -0x10000).to(tl.float32, bitcast=True)
    rest = values - first
    second = ((rest.to(tl.int32, bitcast=True) + half) & -0x10000).to(tl.float32, bitcast=True)
    return first.to(tl.bfloat16), second.to(tl.bfloat16), (rest - second).to(tl.bfloat16)


@triton.jit
def parts_of(values, zero, CODE: tl.constexpr):
    """A float32 factor as it multiplies stored cells: thirds, beside float32 halves."""
    return halves(values, zero) if CODE == "f32" else thirds(values, zero)


@triton.jit
def factor_slice(
    asked, number: tl.constexpr, zero, CODE: tl.constexpr, DIM: tl.constexpr, SLICE: tl.constexpr
):  # fmt: skip
    """Slice `number` of heads that `load_codes` gave, [cells, SLICE]: float32, or what they mean in bfloat16."""
    if CODE == "f32":
        factor = asked[number]
    elif CODE == "bf16":
        factor = (asked[number].to(tl.int16, bitcast=True) | zero.to(tl.int16)).to(tl.bfloat16, bitcast=True)
    elif CODE == "code8":
        factor = levels_of_bytes(asked[number])
    elif number < DIM // 2 // SLICE:
        factor = low_levels(asked[number])
    else:
        factor = high_levels(asked[number - DIM // 2 // SLICE])
    return factor


@triton.jit
def value_slice(
    asked, number: tl.constexpr, zero, CODE: tl.constexpr, DIM: tl.constexpr, SLICE: tl.constexpr
):  # fmt: skip
    """Slice `number` of values as `mixed_slice` takes it: a factor, of float32 its halves."""
    value = factor_slice(asked, number, zero, CODE, DIM, SLICE)
    if CODE == "f32":
        value = halves(value, zero)
    return value


@triton.jit
def exact_product(parts, factor):
    """A float32 factor's thirds @ factor bfloat16, the small products first."""
    first, second, third = parts
    product = tl.dot(third, factor)
    product = tl.dot(second, factor, product)
    return tl.dot(first, factor, product)


@triton.jit
def scores_of(
    queries, keys, scales, zero,
    PADDED: tl.constexpr, CHUNK: tl.constexpr, CODE: tl.constexpr, DIM: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """queries [PADDED, columns] and stored keys [CHUNK, columns] of each slice -> their products [PADDED, CHUNK]."""
    SLICES: tl.constexpr = DIM // SLICE
    one = tl.full((PADDED, CHUNK), 1.0, tl.float32)
    scores, of_rest, with_rest = (tl.zeros((PADDED, CHUNK), tl.float32),) * 3
    parts, factors = (), ()
    if CODE != "f32":
        for number in tl.static_range(SLICES):
            parts += (thirds(queries[number], zero),)
            factors += (tl.trans(factor_slice(keys, number, zero, CODE, DIM, SLICE)),)
    for number in tl.static_range(SLICES):  # a sum: chains of products stay short
        if CODE == "f32":
            q, q_rest = halves(queries[number], zero)
            key, key_rest = halves(tl.trans(keys[number]), zero)
            of_rest = tl.dot(q_rest, key, of_rest, input_precision="tf32")
            with_rest = tl.dot(q, key_rest, with_rest, input_precision="tf32")
            scores = tl.fma(tl.dot(q, key, input_precision="tf32"), one, scores)
        elif has_scales(CODE):
            scale = tl.broadcast_to(scales[number * SLICE // 64].to(tl.float32)[None, :], one.shape)
            scores = tl.fma(exact_product(parts[number], factors[number]), scale, scores)
        else:
            scores = tl.fma(exact_product(parts[number], factors[number]), one, scores)
    return scores + (of_rest + with_rest)


@triton.jit
def weights_of(shares, scales, zero, CODE: tl.constexpr, DIM: tl.constexpr):
    """shares [PADDED, CHUNK] as they multiply the values of each group, whose scale they take in; of all where none."""
    weights = ()
    if has_scales(CODE):
        for number in tl.static_range(groups_of(DIM)):
            weights += (thirds(shares * scales[number].to(tl.float32)[None, :], zero),)
    else:
        weights += (parts_of(shares, zero, CODE),)
    return weights


@triton.jit
def mixed_slice(weights, value, number: tl.constexpr, CODE: tl.constexpr, SLICE: tl.constexpr):
    """What `weights_of` gives and slice `number` of values, as `value_slice` makes it -> [PADDED, columns]."""
    if CODE == "f32":
        share, share_rest = weights[0]
        near, rest = value
        added = tl.dot(share_rest, near, input_precision="tf32")
        added = tl.dot(share, rest, added, input_precision="tf32")
        added = tl.dot(share, near, added, input_precision="tf32")
    elif has_scales(CODE):
        added = exact_product(weights[number * SLICE // 64], value)
    else:
        added = exact_product(weights[0], value)
    return added
