"""Integer instructions of the GPU for Triton kernels, and their twins in plain Triton for its interpreter.

Knows no code and no layout. The interpreter never runs inline PTX; the twins give the same integers. Functions of words
take int32; functions of bytes take int8, of which the GPU handles four at a time in a register.
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


@triton.jit
def _split_nibbles_ptx(byte):
    return tl.inline_asm_elementwise(
        "and.b32 $0, $2, 0x0F0F0F0F; shr.u32 $1, $2, 4; and.b32 $1, $1, 0x0F0F0F0F;",
        "=&r,=&r,r", [byte], dtype=(tl.int8, tl.int8), is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def _split_nibbles_plain(byte):
    return byte & 15, (byte >> 4) & 15


@triton.jit
def _split_pairs_ptx(byte):
    return tl.inline_asm_elementwise(
        """
        and.b32 $0, $4, 0x03030303;
        shr.u32 $1, $4, 2; and.b32 $1, $1, 0x03030303;
        shr.u32 $2, $4, 4; and.b32 $2, $2, 0x03030303;
        shr.u32 $3, $4, 6; and.b32 $3, $3, 0x03030303;
        """,
        "=&r,=&r,=&r,=&r,r", [byte], dtype=(tl.int8, tl.int8, tl.int8, tl.int8), is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def _split_pairs_plain(byte):
    return byte & 3, (byte >> 2) & 3, (byte >> 4) & 3, (byte >> 6) & 3


@triton.jit
def _entries_of_16_ptx(index, t0, t1, t2, t3):
    # The table's words are the same in all four places of a pack: $2, $6, $10 and $14 are the first of each.
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 index, chosen, low, high;
        shr.u32 index, $1, 4; or.b32 index, index, $1; prmt.b32 index, index, 0, 0x4420;
        and.b32 chosen, index, 0x8888; shr.u32 chosen, chosen, 1; or.b32 chosen, chosen, 0x3210;
        and.b32 index, index, 0x7777;
        prmt.b32 low, $2, $6, index; prmt.b32 high, $10, $14, index;
        prmt.b32 $0, low, high, chosen;
        }
        """,
        "=r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r", [index, t0, t1, t2, t3], dtype=tl.int8, is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def _entries_of_16_plain(index, t0, t1, t2, t3):
    word = tl.where(index < 8, tl.where(index < 4, t0, t1), tl.where(index < 12, t2, t3))
    return (word >> ((index.to(tl.int32) & 3) * 8)).to(tl.int8)


@triton.jit
def _prefetch_to_l2_ptx(address, size):
    # The first thread asks for all of it. Both are multiples of 16: the address is made one.
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred asks, isfirst; .reg .b32 thread; .reg .b64 start;
        mov.u32 thread, %tid.x; setp.eq.u32 isfirst, thread, 0;
        setp.gt.and.s32 asks, $2, 0, isfirst; and.b64 start, $1, -16;
        cvta.to.global.u64 start, start;
        @asks cp.async.bulk.prefetch.L2.global [start], $2;
        mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [address.to(tl.int64), size], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _prefetch_to_l2_plain(address, size):
    pass


@triton.jit
def _store_release_ptx(pointer, value):
    # One thread stores; what the others stored lies before it if a barrier does.
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred isfirst; .reg .b32 thread;
        mov.u32 thread, %tid.x; setp.eq.u32 isfirst, thread, 0;
        @isfirst st.release.sys.global.u32 [$1], $2;
        mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [pointer.to(tl.int64), value], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _store_release_plain(pointer, value):
    tl.store(pointer, value)


@triton.jit
def _store_fenced_ptx(pointer, value):
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred isfirst; .reg .b32 thread;
        mov.u32 thread, %tid.x; setp.eq.u32 isfirst, thread, 0;
        @isfirst st.relaxed.sys.global.u32 [$1], $2;
        @isfirst fence.sc.sys;
        mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [pointer.to(tl.int64), value], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _store_fenced_plain(pointer, value):
    tl.store(pointer, value)


@triton.jit
def _load_acquire_ptx(pointer):
    return tl.inline_asm_elementwise(
        "ld.acquire.sys.global.u32 $0, [$1];", "=r,l", [pointer.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _load_acquire_plain(pointer):
    return tl.load(pointer, volatile=True)


@triton.jit
def _load_acquire_in_first_warp_ptx(pointer, otherwise):
    return tl.inline_asm_elementwise(
        """
        {
        .reg .pred isfirst; .reg .b32 thread;
        mov.u32 thread, %tid.x; setp.lt.u32 isfirst, thread, 32;
        mov.b32 $0, $2;
        @isfirst ld.acquire.sys.global.u32 $0, [$1];
        }
        """,
        "=&r,l,r", [pointer.to(tl.int64), otherwise], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _load_acquire_in_first_warp_plain(pointer, otherwise):
    return tl.load(pointer, volatile=True)


@triton.jit
def _nanoseconds_ptx():
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _nanoseconds_plain():
    return tl.full((), 0, tl.int64)


if triton.knobs.runtime.interpret:
    dp4a, permute_bytes = _dp4a_plain, _permute_plain
    split_nibbles, split_pairs, entries_of_16 = _split_nibbles_plain, _split_pairs_plain, _entries_of_16_plain
    prefetch_to_l2 = _prefetch_to_l2_plain
    store_release, store_fenced, load_acquire = _store_release_plain, _store_fenced_plain, _load_acquire_plain
    load_acquire_in_first_warp = _load_acquire_in_first_warp_plain
    nanoseconds = _nanoseconds_plain
else:
    # dp4a(a, b, total): total + the sum of four products of signed bytes.
    # permute_bytes(low, high, selector): byte i of the result is byte (selector >> 4i) & 7 of the eight; the fourth bit
    # of each selector nibble must be clear.
    dp4a, permute_bytes = _dp4a_ptx, _permute_ptx
    # split_nibbles(byte): (low four bits, high four bits). split_pairs(byte): its four pairs of bits, rising.
    # entries_of_16(index, t0, t1, t2, t3): entry 0 .. 15 of a table of bytes in four words, index int8.
    split_nibbles, split_pairs, entries_of_16 = _split_nibbles_ptx, _split_pairs_ptx, _entries_of_16_ptx
    # prefetch_to_l2(address, size): the program asks for these bytes, once; both scalars, multiples of 16.
    prefetch_to_l2 = _prefetch_to_l2_ptx
    # store_release(pointer, value): a word for the whole system (the CPU, other GPUs), behind what the program stored
    # before a barrier and what it knows of from others. load_acquire(pointer): what lies behind such a store elsewhere
    # may be read once its word was seen. store_fenced(pointer, value): a word that the whole system can see before the
    # program's first thread reads anything that stands behind it. Scalars of int32.
    store_release, store_fenced, load_acquire = _store_release_ptx, _store_fenced_ptx, _load_acquire_ptx
    # load_acquire_in_first_warp(pointer, otherwise): one warp looks, which is enough before a barrier of the program;
    # the others are given `otherwise` at once.
    load_acquire_in_first_warp = _load_acquire_in_first_warp_ptx
    # nanoseconds(): the GPU's clock; the interpreter has none: 0.
    nanoseconds = _nanoseconds_ptx
