"""Keys and values as cells store them, for Triton kernels: heads encoded, decoded and rotated.

Gives the bits of quant/cell_codes.py, whose names of codes are the CODE here: only + - *, tl.div_rn and bits. Knows one
head or rows of heads; knows no slot and no attention.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.quant.cell_codes import CellRows

MOST_SCALE = tl.constexpr(65504.0)
MOST_STRIDES = tl.constexpr(8)  # of a head of 256


def pointers(rows: CellRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as a kernel is given them; where there are no scales, codes stand for what nobody reads."""
    return rows.codes, rows.codes if rows.scales is None else rows.scales


@triton.constexpr_function
def columns_of(code, head_dim):
    """Elements that hold a head's codes."""
    return head_dim // 2 if code == "code4" else head_dim


@triton.constexpr_function
def groups_of(head_dim):
    """Scales of a head, where it has any."""
    return max(1, head_dim // 64)


@triton.constexpr_function
def has_scales(code):
    """Whether a head is levels and scales."""
    return code in ("code8", "code4")


@triton.jit
def butterflies(x, COUNT: tl.constexpr, DIM: tl.constexpr):
    """COUNT runs of DIM values side by side, of any shape: pairs at strides 1, 2, 4 .. DIM / 2 become sum, difference.

    What a value is paired with is the sum of both, as whole numbers, without it: exact, and an exchange inside a warp.
    """
    for power in tl.static_range(MOST_STRIDES):
        if 1 << power < DIM:
            pairs = tl.reshape(x, (COUNT * DIM // (2 << power), 2, 1 << power))
            bits = pairs.to(tl.int32, bitcast=True)
            partner = (tl.sum(bits, axis=1, keep_dims=True) - bits).to(tl.float32, bitcast=True)
            is_first = tl.arange(0, 2)[None, :, None] == 0
            x = tl.reshape(tl.where(is_first, pairs + partner, partner - pairs), x.shape)
    return x


@triton.jit
def rotate(x, COUNT: tl.constexpr, DIM: tl.constexpr):
    """COUNT heads side by side, each rotated."""
    return butterflies(x, COUNT, DIM) * (DIM**-0.5)


@triton.jit
def levels_of(x, MOST: tl.constexpr, DIM: tl.constexpr):
    """x [DIM] -> whole numbers from -MOST to MOST as float32 [groups, values], and the groups' scales float16."""
    GROUPS: tl.constexpr = groups_of(DIM)
    values = tl.reshape(x, (GROUPS, DIM // GROUPS))
    largest = tl.max(tl.abs(values), axis=1)
    scale = tl.minimum(tl.div_rn(largest, tl.full((GROUPS,), MOST, tl.float32)), MOST_SCALE).to(tl.float16)
    step = tl.broadcast_to(scale.to(tl.float32)[:, None], values.shape)
    quotient = tl.div_rn(values, tl.where(step == 0.0, 1.0, step))
    level = tl.minimum(tl.maximum(quotient, -1.0 * MOST), 1.0 * MOST)
    level = (level + 12582912.0) - 12582912.0  # 1.5 * 2^23: to the nearest integer, ties to even
    return tl.where(step == 0.0, 0.0, level), scale


@triton.jit
def store_head(codes, scales, head, x, CODE: tl.constexpr, DIM: tl.constexpr):
    """Encode x [DIM] float32 as head number `head` of those at `codes` and `scales`."""
    COLUMNS: tl.constexpr = columns_of(CODE, DIM)
    place = codes + head * COLUMNS + tl.arange(0, COLUMNS)
    if has_scales(CODE):
        GROUPS: tl.constexpr = groups_of(DIM)
        if CODE == "code8":
            level, scale = levels_of(x, 127, DIM)
            tl.store(place, tl.reshape(level, (DIM,)).to(tl.int8))
        else:
            level, scale = levels_of(rotate(x, 1, DIM), 7, DIM)
            nibbles = tl.reshape(level, (2, COLUMNS)).to(tl.int32) + 8
            tl.store(place, tl.sum(nibbles << (tl.arange(0, 2) * 4)[:, None], axis=0).to(tl.uint8))
        tl.store(scales + head * GROUPS + tl.arange(0, GROUPS), scale)
    else:
        tl.store(place, x.to(codes.dtype.element_ty))


@triton.jit
def load_codes(codes, head, is_there, CODE: tl.constexpr, DIM: tl.constexpr, SLICE: tl.constexpr):
    """Of the heads `head` [N]: their codes as a tuple of [N, SLICE]. Waits for none.

    SLICE divides 64, and half of DIM where the code is code4.
    """
    COLUMNS: tl.constexpr = columns_of(CODE, DIM)
    at = head[:, None] * COLUMNS + tl.arange(0, SLICE)[None, :]
    asked = ()
    for number in tl.static_range(COLUMNS // SLICE):
        asked += (tl.load(codes + at + number * SLICE, mask=is_there[:, None], other=0),)
    return asked


@triton.jit
def load_scales(scales, head, is_there, CODE: tl.constexpr, DIM: tl.constexpr):
    """Their scales, a tuple of float16 [N]: one for each group; empty where there are none."""
    asked = ()
    if has_scales(CODE):
        GROUPS: tl.constexpr = groups_of(DIM)
        for number in tl.static_range(GROUPS):
            asked += (tl.load(scales + head * GROUPS + number, mask=is_there, other=0.0),)
    return asked


@triton.jit
def level_of(code, zero, CODE: tl.constexpr):
    """Stored codes, of code4 nibbles -> float32: what they mean, where there are scales the level. zero: the integer 0.

    By bits: GPUs turn integers and bfloat16 into float32 at a sixteenth of the rate of an addition.
    """
    if CODE == "f32":
        values = code
    elif CODE == "bf16":
        values = (code.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif CODE == "code8":
        biased = (code.to(tl.int32) & 0xFF) ^ 0x80
        values = (biased | (0x4B000000 + zero)).to(tl.float32, bitcast=True) - 8388736.0  # 2^23 + 128
    else:
        values = (code.to(tl.int32) | (0x4B000000 + zero)).to(tl.float32, bitcast=True) - 8388616.0  # 2^23 + 8
    return values


@triton.jit
def decode_heads(codes, scales, head, is_there, CODE: tl.constexpr, DIM: tl.constexpr, COUNT: tl.constexpr):
    """The heads `head` [COUNT] of those at `codes` and `scales` -> float32 [COUNT, DIM]; of code4 rotated ones."""
    COLUMNS: tl.constexpr = columns_of(CODE, DIM)
    column = tl.arange(0, DIM)[None, :]
    code = tl.load(codes + head[:, None] * COLUMNS + column % COLUMNS, mask=is_there[:, None], other=0)
    if CODE == "code4":
        code = (code >> (column // COLUMNS * 4).to(tl.uint8)) & 15
    values = level_of(code, 0, CODE)
    if has_scales(CODE):
        GROUPS: tl.constexpr = groups_of(DIM)
        at = head[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]
        scale = tl.load(scales + at, mask=is_there[:, None], other=0.0).to(tl.float32)
        by_group = tl.reshape(values, (COUNT, GROUPS, DIM // GROUPS)) * scale[:, :, None]
        values = tl.reshape(by_group, (COUNT, DIM))
    return values
