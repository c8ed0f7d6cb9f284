"""Decode steps of the integer codes for the GPU's matrix units: the integers of whole blocks as int8.

Knows the layout of docs/storage-codes.md; knows no activation and no order of additions. Each function gives int8
[blocks, 16 rows, 32] of the blocks `at_block` (int32 [blocks], tile * blocks of a row + block). The 32 columns come in
the order of quantized activations: word w of the low 16 columns, word w of the high 16, rising w (a word of code4
holds just these eight). A thread loads eight bytes that lie together, of two neighbours among the rows. Scales and
minima are those of decode.py.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.instructions import entries_of_16, split_nibbles, split_pairs
from strata.quant.layout import Code


@triton.jit
def _load(codes, at_block, FIRST: tl.constexpr, WORDS: tl.constexpr, WORDS_OF_BLOCK: tl.constexpr):
    """Words FIRST .. of whole blocks: [blocks, 16 rows, WORDS, 4 bytes], one run of memory a block.

    The compiler spreads a load's first dimensions over threads first: words and pairs of rows over a warp's.
    """
    word = (tl.arange(0, WORDS) + FIRST)[:, None, None, None]
    pair, byte = tl.arange(0, 8)[None, :, None, None], tl.arange(0, 8)[None, None, None, :]
    at = at_block[None, None, :, None] * (64 * WORDS_OF_BLOCK) + word * 64 + pair * 8 + byte
    values = tl.load(tl.multiple_of(codes.to(tl.pointer_type(tl.int8)), 64) + at)
    BLOCKS: tl.constexpr = at_block.shape[0]
    values = tl.permute(tl.reshape(values, (WORDS, 8, BLOCKS, 2, 4)), (2, 1, 3, 0, 4))
    return tl.reshape(values, (BLOCKS, 16, WORDS, 4))


@triton.jit
def _join_two(low, high):
    """Two int8 [blocks, 16, 4 words, 4], of the low and of the high columns -> [blocks, 16, 32]."""
    return tl.reshape(tl.permute(tl.join(low, high), (0, 1, 2, 4, 3)), (low.shape[0], 16, 32))


@triton.jit
def _join_four(a, b, c, d):
    """Four int8 [blocks, 16, 2 words, 4] of eight columns each, rising -> [blocks, 16, 32]."""
    joined = tl.join(tl.join(a, b), tl.join(c, d))  # [blocks, 16, word, byte, which of a half, half]
    return tl.reshape(tl.permute(joined, (0, 1, 4, 2, 5, 3)), (a.shape[0], 16, 32))


@triton.jit
def bytes_of_code8(codes, at_block, table):
    """The integers themselves."""
    return _join_two(_load(codes, at_block, 0, 4, 8), _load(codes, at_block, 4, 4, 8))


@triton.jit
def bytes_of_code4(codes, at_block, table):
    """The codes 0..15 themselves: for tables that are code + offset."""
    low, high = split_nibbles(_load(codes, at_block, 0, 4, 4))
    return _join_two(low, high)


@triton.jit
def bytes_of_code4_table(codes, at_block, table):
    """Entries of any table of sixteen."""
    low, high = split_nibbles(_load(codes, at_block, 0, 4, 4))
    low = entries_of_16(low, table[0], table[1], table[2], table[3])
    return _join_two(low, entries_of_16(high, table[0], table[1], table[2], table[3]))


@triton.jit
def bytes_of_code2(codes, at_block, table):
    """The codes 0..3 themselves: for tables that are code + offset."""
    a, b, c, d = split_pairs(_load(codes, at_block, 0, 2, 2))
    return _join_four(a, b, c, d)


@triton.jit
def bytes_of_code2_table(codes, at_block, table):
    """Entries of any table of four: the first word of a table of sixteen."""
    a, b, c, d = split_pairs(_load(codes, at_block, 0, 2, 2))
    a = entries_of_16(a, table[0], table[1], table[2], table[3])
    b = entries_of_16(b, table[0], table[1], table[2], table[3])
    c = entries_of_16(c, table[0], table[1], table[2], table[3])
    return _join_four(a, b, c, entries_of_16(d, table[0], table[1], table[2], table[3]))


BYTES = {
    (Code.CODE2, True): bytes_of_code2,
    (Code.CODE2, False): bytes_of_code2_table,
    (Code.CODE4, True): bytes_of_code4,
    (Code.CODE4, False): bytes_of_code4_table,
    (Code.CODE8, False): bytes_of_code8,
}
