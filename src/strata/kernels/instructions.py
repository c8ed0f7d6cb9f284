"""Two integer instructions of the GPU for Triton kernels, and their twins in plain Triton for its interpreter.

Knows no code and no layout. The interpreter never runs inline PTX; the twins give the same integers.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def _dp4a_ptx(a, b, total):
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _dp4a_plain(a, b, total):
    for byte in tl.static_range(4):
        total += ((a << (24 - 8 * byte)) >> 24) * ((b << (24 - 8 * byte)) >> 24)
    return total


@triton.jit
def _permute_ptx(low, high, selector):
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [low, high, selector], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _permute_plain(low, high, selector):
    both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
    result = both & 0
    for byte in tl.static_range(4):
        chosen = (selector >> (4 * byte)) & 7
        result |= ((both >> (8 * chosen)) & 0xFF) << (8 * byte)
    return result.to(tl.int32)


if triton.knobs.runtime.interpret:
    dp4a, permute_bytes = _dp4a_plain, _permute_plain
else:
    # dp4a(a, b, total): total + the sum of four products of signed bytes.
    # permute_bytes(low, high, selector): byte i of the result is byte (selector >> 4i) & 7 of the eight; the fourth bit
    # of each selector nibble must be clear.
    dp4a, permute_bytes = _dp4a_ptx, _permute_ptx
