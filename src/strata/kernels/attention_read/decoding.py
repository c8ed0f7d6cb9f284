"""Stored cells as the matrix units of a read multiply them, on a GPU: decoded, rotated back, rounded to bfloat16.

Knows heads in a row; knows no slot and no attention.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.stored_cells import decode_heads, rotate

HEADS_AT_ONCE = 16  # of a program


@triton.jit
def multiply_heads(codes, scales, out, head, is_there, CODE: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr):
    """The heads number `head` [HEADS] int64 of one side, to `out` at the same numbers."""
    values = decode_heads(codes, scales, head, is_there, CODE, DIM, HEADS)
    if CODE == "code4":
        values = rotate(values, HEADS, DIM)
    at = head[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tl.store(out + at, values.to(tl.bfloat16), mask=is_there[:, None])


@triton.jit(do_not_specialize=["heads"])
def multiplied_kernel(
    keys, keys_scales, keys_out, values, values_scales, values_out, heads,
    KEY_CODE: tl.constexpr, VALUE_CODE: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """`heads` stored heads of both sides -> bfloat16 [heads, DIM]; grid (tiles of HEADS, keys and values)."""
    head = tl.program_id(0).to(tl.int64) * HEADS + tl.arange(0, HEADS)
    if tl.program_id(1) == 0:
        multiply_heads(keys, keys_scales, keys_out, head, head < heads, KEY_CODE, DIM, HEADS)
    else:
        multiply_heads(values, values_scales, values_out, head, head < heads, VALUE_CODE, DIM, HEADS)
