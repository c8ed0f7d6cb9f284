"""Stored levels as bfloat16, four at a time in registers, and the twins in plain Triton for its interpreter.

Levels are whole numbers from -127 to 127, which bfloat16 holds. Knows no cell and no product.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs

import triton
import triton.language as tl

# None of them is pure: Triton would make levels where matrix units want them, and pass bytes through shared memory.


@triton.jit
def _levels_of_bytes_ptx(code):
    # 0x4B000000 is 2^23 in float32, whose last bit is 1 there.
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 biased, a, b; .reg .f32 x, y;
        xor.b32 biased, $2, 0x80808080;
        prmt.b32 a, biased, 0x4B000000, 0x7440; prmt.b32 b, biased, 0x4B000000, 0x7441;
        mov.b32 x, a; mov.b32 y, b; sub.f32 x, x, 0f4B000080; sub.f32 y, y, 0f4B000080;
        cvt.rn.bf16x2.f32 $0, y, x;
        prmt.b32 a, biased, 0x4B000000, 0x7442; prmt.b32 b, biased, 0x4B000000, 0x7443;
        mov.b32 x, a; mov.b32 y, b; sub.f32 x, x, 0f4B000080; sub.f32 y, y, 0f4B000080;
        cvt.rn.bf16x2.f32 $1, y, x;
        }
        """,
        "=&r,=&r,r", [code], dtype=tl.bfloat16, is_pure=False, pack=4,
    )  # fmt: skip


@triton.jit
def _levels_of_bytes_plain(code):
    return code.to(tl.float32).to(tl.bfloat16)


@triton.jit
def _low_levels_ptx(byte):
    # 0x4300 is 128 in bfloat16, whose last bit is 1 there; 0xC308 is -136.
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, one, bias;
        mov.b32 one, 0x3F803F80; mov.b32 bias, 0xC308C308;
        prmt.b32 a, $2, 0, 0x4140; prmt.b32 b, $2, 0, 0x4342;
        lop3.b32 a, a, 0x000F000F, 0x43004300, 0xEA; lop3.b32 b, b, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 $0, a, one, bias; fma.rn.bf16x2 $1, b, one, bias;
        }
        """,
        "=&r,=&r,r", [byte], dtype=tl.bfloat16, is_pure=False, pack=4,
    )  # fmt: skip


@triton.jit
def _low_levels_plain(byte):
    return ((byte & 15).to(tl.float32) - 8.0).to(tl.bfloat16)


@triton.jit
def _high_levels_ptx(byte):
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, word, one, bias;
        mov.b32 one, 0x3F803F80; mov.b32 bias, 0xC308C308;
        shr.u32 word, $2, 4;
        prmt.b32 a, word, 0, 0x4140; prmt.b32 b, word, 0, 0x4342;
        lop3.b32 a, a, 0x000F000F, 0x43004300, 0xEA; lop3.b32 b, b, 0x000F000F, 0x43004300, 0xEA;
        fma.rn.bf16x2 $0, a, one, bias; fma.rn.bf16x2 $1, b, one, bias;
        }
        """,
        "=&r,=&r,r", [byte], dtype=tl.bfloat16, is_pure=False, pack=4,
    )  # fmt: skip


@triton.jit
def _high_levels_plain(byte):
    return ((byte >> 4).to(tl.float32) - 8.0).to(tl.bfloat16)


if triton.knobs.runtime.interpret:
    levels_of_bytes, low_levels, high_levels = _levels_of_bytes_plain, _low_levels_plain, _high_levels_plain
else:
    # levels_of_bytes(code): of int8. low_levels(byte), high_levels(byte): of nibbles of uint8, which hold level + 8.
    levels_of_bytes, low_levels, high_levels = _levels_of_bytes_ptx, _low_levels_ptx, _high_levels_ptx
