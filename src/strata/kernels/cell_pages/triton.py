"""Bringing blocks into the pool on a GPU: a launch that finds what is missing and who gives way, one that copies.

Knows numbers of blocks and bytes; knows no code and no attention. Floor: the missing blocks' bytes over PCIe.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from strata.kernels.arrivals import arrives_last
from strata.kernels.cell_pages.arguments import (
    CLAIMED,
    MOST_STAMP,
    NO_PLACE,
    CellPages,
    ChosenBlocks,
    PageWork,
    StoredCells,
    Total,
    Word,
    blocks_of_row,
)
from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.window_rows import WindowRows
from strata.quant.cell_codes import CellRows

LOOKED_AT = 256  # places at a time while it is sought who gives way; 1,024 take 1 us more at 128 misses on an H200
MARK_WARPS = 16
COPY_PROGRAMS = 264  # two for each multiprocessor of a large GPU; from 64 on, and with any warps, an H200 takes as long
COPY_WARPS = 4
COPIED_WORDS = 2048  # of a slot's cells by one program

_NO_PLACE, _CLAIMED, _MOST_STAMP = tl.constexpr(NO_PLACE), tl.constexpr(CLAIMED), tl.constexpr(MOST_STAMP)
_ARRIVALS, _CLAIMS, _BROUGHT = tl.constexpr(Word.ARRIVALS), tl.constexpr(Word.CLAIMS), tl.constexpr(Word.BROUGHT)
_HAND, _STAMP = tl.constexpr(Word.HAND), tl.constexpr(Word.STAMP)
_ALL_ASKED, _ALL_BROUGHT = tl.constexpr(Total.ASKED), tl.constexpr(Total.BROUGHT)


@triton.jit
def find_missing(
    slot, position, chosen_count, chosen, table, used, words, totals, missing, stamp, blocks,
    RATIO: tl.constexpr, TOP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Mark what one row needs and has a place, and list what has none unless another row has listed it."""
    lane = tl.arange(0, LANES)
    is_choosing, open_block = chosen_count > 0, position // RATIO
    count = tl.where(is_choosing, TOP + tl.where((position + 1) % RATIO != 0, 1, 0), open_block + 1)
    count = tl.where(slot >= 0, count, 0)
    is_chosen = lane < tl.where(is_choosing, TOP, 0)
    block = tl.load(chosen + lane, mask=is_chosen, other=0)
    block = tl.where(is_chosen, block, tl.where(is_choosing, open_block, lane))
    number, exists = slot * blocks + block, lane < count
    place = tl.load(table + number, mask=exists, other=0, cache_modifier=".cg")
    tl.store(used + place, place * 0 + (2 * stamp + 1), mask=exists & (place >= 0))
    is_missing = exists & (place < 0)
    before = tl.atomic_min(table + number, place * 0 + _CLAIMED, mask=is_missing, sem="relaxed")
    is_claimed = is_missing & (before == _NO_PLACE)
    claimed = is_claimed.to(tl.int32)
    first = tl.atomic_add(words + _CLAIMS, tl.sum(claimed, axis=0), sem="relaxed")
    tl.store(missing + first + tl.cumsum(claimed, axis=0) - 1, number, mask=is_claimed)
    tl.atomic_add(totals + _ALL_ASKED, count.to(tl.int64), sem="relaxed")


@triton.jit
def give_places(
    table, owner, used, missing, targets, claims, hand, stamp, places, LANES: tl.constexpr
):  # fmt: skip
    """A place for each of `claims` missing blocks; returns the place that the hand comes to.

    What other programs stored is read past this multiprocessor's own cache.
    """
    lane, taken = tl.arange(0, LANES), 0
    while taken < claims:
        place = hand + lane
        place = tl.where(place >= places, place - places, place)
        exists = lane < places
        word = tl.load(used + tl.where(exists, place, 0), mask=exists, other=0, cache_modifier=".cg")
        is_needed = (word >> 1) == stamp
        may_go = exists & ((word & 1) == 0) & (is_needed == 0)
        going = may_go.to(tl.int32)
        number = taken + tl.cumsum(going, axis=0) - going  # of the block that comes here, where one may go
        is_passed = exists & (number < claims)
        goes = may_go & is_passed
        comes = tl.load(missing + number, mask=goes, other=0, cache_modifier=".cg")
        old = tl.load(owner + place, mask=goes, other=_NO_PLACE, cache_modifier=".cg")
        tl.store(table + old, old * 0 + _NO_PLACE, mask=goes & (old >= 0))
        tl.store(table + comes, place, mask=goes)
        tl.store(owner + place, comes, mask=goes)
        tl.store(targets + number, place, mask=goes)
        tl.store(used + place, tl.where(goes, 2 * stamp + 1, word & -2), mask=is_passed & (is_needed == 0))
        hand = (hand + tl.sum(is_passed.to(tl.int32), axis=0)) % places
        taken += tl.sum(goes.to(tl.int32), axis=0)
        tl.debug_barrier()  # a second round finds what other threads stored in the first
    return hand


@triton.jit(
    do_not_specialize=["blocks", "places"],
    do_not_specialize_on_alignment=[
        "slots", "positions", "chosen", "counts", "table", "owner", "used", "words", "totals", "missing", "targets",
    ],
)  # fmt: skip
def place_kernel(
    slots, positions, chosen, counts, table, owner, used, words, totals, missing, targets, blocks, places,
    RATIO: tl.constexpr, TOP: tl.constexpr, LANES: tl.constexpr, LOOKED: tl.constexpr,
):  # fmt: skip
    """Grid (rows,): each finds what its row lacks, the last one gives places for all of it."""
    begin_dependent()
    row = tl.program_id(0)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    stamp = tl.load(words + _STAMP) % _MOST_STAMP + 1
    hand = tl.load(words + _HAND)
    find_missing(
        slot, position, tl.load(counts + row), chosen + row * TOP, table, used, words, totals, missing, stamp,
        blocks, RATIO, TOP, LANES,
    )  # fmt: skip
    if arrives_last(words + _ARRIVALS, tl.num_programs(0)):
        claims = tl.load(words + _CLAIMS, cache_modifier=".cg")
        hand = give_places(table, owner, used, missing, targets, claims, hand, stamp, places, LOOKED)
        tl.store(words + _CLAIMS, 0)
        tl.store(words + _BROUGHT, claims)
        tl.store(words + _HAND, hand)
        tl.store(words + _STAMP, stamp)
        tl.atomic_add(totals + _ALL_BROUGHT, claims.to(tl.int64), sem="relaxed")


@triton.jit
def load_block(source, block, WORDS: tl.constexpr):
    """A block's words of one part; WORDS 0: there is no such part."""
    PADDED: tl.constexpr = triton.next_power_of_2(WORDS)
    word = tl.arange(0, PADDED)
    return tl.load(source + block * WORDS + word, mask=word < WORDS)


@triton.jit
def store_block(target, place, words, WORDS: tl.constexpr):
    """The same to its place."""
    word = tl.arange(0, words.shape[0])
    tl.store(target + place * WORDS + word, words, mask=word < WORDS)


@triton.jit(do_not_specialize_on_alignment=["missing", "targets", "words"])
def bring_kernel(
    keys, key_scales, values, value_scales, held_keys, held_key_scales, held_values, held_value_scales,
    missing, targets, words,
    KEYS: tl.constexpr, KEY_SCALES: tl.constexpr, VALUES: tl.constexpr, VALUE_SCALES: tl.constexpr,
):  # fmt: skip
    """Grid (programs,), which take the blocks in turn. KEYS and so on: a block's int32 words of each part."""
    begin_dependent()
    count = tl.load(words + _BROUGHT)
    for number in tl.range(tl.program_id(0), count, tl.num_programs(0)):
        block, place = tl.load(missing + number).to(tl.int64), tl.load(targets + number).to(tl.int64)
        key, value = load_block(keys, block, KEYS), load_block(values, block, VALUES)  # all asked for, then stored
        if KEY_SCALES > 0:
            key_scale = load_block(key_scales, block, KEY_SCALES)
        if VALUE_SCALES > 0:
            value_scale = load_block(value_scales, block, VALUE_SCALES)
        store_block(held_keys, place, key, KEYS)
        store_block(held_values, place, value, VALUES)
        if KEY_SCALES > 0:
            store_block(held_key_scales, place, key_scale, KEY_SCALES)
        if VALUE_SCALES > 0:
            store_block(held_value_scales, place, value_scale, VALUE_SCALES)


@triton.jit
def copy_kernel(source, target, count, WORDS: tl.constexpr):
    """Pieces of `count` int32 words, whose number 16 divides; grid (pieces,)."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    tl.store(target + word, tl.load(source + word, mask=word < count), mask=word < count)


def resolve_pages(rows: WindowRows, choice: ChosenBlocks, cells: StoredCells, pages: CellPages, work: PageWork) -> None:
    """See the package."""
    top = choice.chosen.shape[1]
    place_kernel[(rows.count,)](
        rows.slots, rows.positions, choice.chosen, choice.counts, pages.table, pages.owner, pages.used, pages.words,
        pages.totals, work.missing, work.targets, pages.blocks, pages.places,
        RATIO=pages.ratio, TOP=top, LANES=triton.next_power_of_2(blocks_of_row(top)), LOOKED=LOOKED_AT,
        num_warps=MARK_WARPS, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
    stored, held = _words_of(cells.keys, cells.values), _words_of(pages.keys, pages.values)
    sizes = [0 if part is None else part.numel() // pages.places for part in held]
    unused = work.missing  # stands where there are no scales
    bring_kernel[(min(COPY_PROGRAMS, rows.count * blocks_of_row(top)),)](
        *(unused if part is None else part for part in (*stored, *held)), work.missing, work.targets, pages.words,
        KEYS=sizes[0], KEY_SCALES=sizes[1], VALUES=sizes[2], VALUE_SCALES=sizes[3],
        num_warps=COPY_WARPS, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


def copy_cells(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], device: torch.device) -> None:
    """See the package."""
    with torch.cuda.device(device):
        for source, target in zip(found, wanted, strict=True):
            words, into = (part.view(-1).view(torch.int32) for part in (source, target))
            if words.numel():
                copy_kernel[(triton.cdiv(words.numel(), COPIED_WORDS),)](
                    words, into, words.numel(), WORDS=COPIED_WORDS, num_warps=COPY_WARPS
                )


def _words_of(keys: CellRows, values: CellRows) -> tuple[torch.Tensor | None, ...]:
    """Codes and scales of keys, then of values, as int32 in one row; None where there are no scales."""
    parts = (keys.codes, keys.scales, values.codes, values.scales)
    return tuple(None if part is None else part.view(-1).view(torch.int32) for part in parts)
