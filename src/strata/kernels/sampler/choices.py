"""The launches that choose a token a row: all of them have PROGRAMS programs a row, which share its vocabulary.

    largest       the largest logit, the lowest id of it; room for histograms is emptied
    coarse        rows without a filter are drawn from; of others distances are counted coarsely
    narrow        four times: top-k's two finer histograms, then top-p's
    filtered      rows with a filter are drawn from
    finish        the winner of each row

Programs of rows with nothing to do at a launch leave at once. Knows rows and slots; no model.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent
from strata.kernels.sampler import slots
from strata.kernels.sampler.draws import gumbel
from strata.kernels.sampler.order import (
    INVERSE_TEMPERATURE,
    LOWEST,
    WORDS,
    float_of,
    float_word,
    has_top_k,
    has_top_p,
    is_drawn,
    is_finite,
    magnitude_of,
    number_of,
    packed,
    token_of,
    winner_of,
)
from strata.kernels.sampler.search import (
    BINS_A_ROW,
    COARSE_BINS,
    FINE_BINS,
    NOWHERE,
    SEARCH_WORDS,
    TOP_K_FILTER,
    add_coarse,
    add_fine,
    coarse_start,
    find,
    fine_place,
    last_kept,
    needed_sum,
    search_place,
    sum_below,
)

LOG_MIN_P, CHOICE, SEED = tl.constexpr(slots.LOG_MIN_P), tl.constexpr(slots.CHOICE), tl.constexpr(slots.SEED)
LOGITS, SCORES = tl.constexpr(0), tl.constexpr(1)


@triton.jit(do_not_specialize_on_alignment=["row_slots", "variables"])
def largest_kernel(
    logits, row_slots, variables, winners, counts, weights,
    VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
    CLEARED: tl.constexpr,
):  # fmt: skip
    """Grid (PROGRAMS, rows). CLEARED: a power of two, at least BINS_A_ROW / PROGRAMS."""
    begin_dependent()
    program, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(row_slots + row)
    if slot >= 0:
        best = tl.full((BLOCK,), LOWEST, tl.int64)
        for block in range(BLOCKS):
            token_ids = (program * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
            at = logits + row * VOCABULARY + token_ids
            best = tl.maximum(best, packed(tl.load(at, mask=token_ids < VOCABULARY, other=float("-inf")), token_ids))
        tl.store(winners + (row * 2 + LOGITS) * PROGRAMS + program, tl.max(best, axis=0))
        words = variables + slot * WORDS
        if has_top_k(words, VOCABULARY) | has_top_p(words):
            share = BINS_A_ROW // PROGRAMS
            bin = tl.arange(0, CLEARED)
            place = row * BINS_A_ROW + program * share + bin
            tl.store(counts + place, tl.zeros((CLEARED,), tl.int32), mask=bin < share)
            tl.store(weights + place, tl.zeros((CLEARED,), tl.int64), mask=bin < share)


@triton.jit
def distances_of(logits, row, token_ids, largest, inverse, VOCABULARY: tl.constexpr):
    """From the largest logit, over the temperature; behind the vocabulary -inf."""
    values = tl.load(logits + row * VOCABULARY + token_ids, mask=token_ids < VOCABULARY, other=float("-inf"))
    return (values - largest) * inverse


@triton.jit
def draw(
    logits, row, position, words, largest, winners, magnitude, room, equal,
    VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """The best score of this program's tokens among those kept: magnitudes up to `magnitude`.

    Of those that have it, the first `room` of the `equal` there are in the row.
    """
    program = tl.program_id(0)
    inverse, least = float_word(words, INVERSE_TEMPERATURE), float_word(words, LOG_MIN_P)
    seed_low, seed_high = tl.load(words + SEED), tl.load(words + SEED + 1)
    choice = tl.load(words + CHOICE)
    is_cut = equal > room
    taken = tl.zeros((BLOCK,), tl.int32)  # in each place of the blocks before: tokens of the last magnitude
    if is_cut:
        for block in range(program * BLOCKS):
            token_ids = block * BLOCK + tl.arange(0, BLOCK)
            distance = distances_of(logits, row, token_ids, largest, inverse, VOCABULARY)
            taken += (magnitude_of(distance) == magnitude).to(tl.int32)
    best = tl.full((BLOCK,), LOWEST, tl.int64)
    for block in range(BLOCKS):
        token_ids = (program * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        distance = distances_of(logits, row, token_ids, largest, inverse, VOCABULARY)
        found = magnitude_of(distance)
        is_kept = (found <= magnitude) & (distance >= least)
        if is_cut:
            is_last = (found == magnitude).to(tl.int32)
            rank = tl.sum(taken, axis=0) + tl.cumsum(is_last, axis=0)
            is_kept = is_kept & ((is_last == 0) | (rank <= room))
            taken += is_last
        if tl.max(is_kept.to(tl.int32), axis=0) > 0:
            score = distance + gumbel(seed_low, seed_high, position, token_ids, choice)
            best = tl.maximum(best, packed(tl.where(is_kept, score, float("-inf")), token_ids))
    tl.store(winners + (row * 2 + SCORES) * PROGRAMS + program, tl.max(best, axis=0))


@triton.jit(do_not_specialize_on_alignment=["row_slots", "positions", "variables"])
def coarse_kernel(
    logits, row_slots, positions, variables, winners, counts, weights,
    VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Grid (PROGRAMS, rows)."""
    begin_dependent()
    program, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(row_slots + row)
    if slot >= 0:
        words = variables + slot * WORDS
        number = number_of(winner_of(winners, row, LOGITS, PROGRAMS))
        if is_drawn(words, number):
            largest = float_of(number)
            uses_counts, uses_weights = has_top_k(words, VOCABULARY), has_top_p(words)
            if uses_counts | uses_weights:
                inverse = float_word(words, INVERSE_TEMPERATURE)
                for block in range(BLOCKS):
                    token_ids = (program * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
                    distance = distances_of(logits, row, token_ids, largest, inverse, VOCABULARY)
                    at = row * BINS_A_ROW
                    add_coarse(counts + at, weights + at, distance, uses_counts, uses_weights, BLOCK)
            else:
                position = tl.load(positions + row) + 1
                draw(logits, row, position, words, largest, winners, NOWHERE, 0, 0, VOCABULARY, BLOCKS, BLOCK, PROGRAMS)


@triton.jit(do_not_specialize_on_alignment=["row_slots", "variables"])
def narrow_kernel(
    logits, row_slots, variables, winners, counts, weights, searches,
    FILTER: tl.constexpr, LEVEL: tl.constexpr,
    VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Grid (PROGRAMS, rows): find the bin in which a filter's last token lies and count that bin's distances finely."""
    begin_dependent()
    program, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(row_slots + row)
    if slot >= 0:
        words = variables + slot * WORDS
        uses_weights = has_top_p(words)
        has_filter = has_top_k(words, VOCABULARY) if FILTER == TOP_K_FILTER else uses_weights
        if has_filter:
            number = number_of(winner_of(winners, row, LOGITS, PROGRAMS))
            if is_drawn(words, number):
                row_counts, row_weights = counts + row * BINS_A_ROW, weights + row * BINS_A_ROW
                row_searches = searches + row * 4 * SEARCH_WORDS
                start, end = narrow_search(words, row_counts, row_weights, row_searches, FILTER, LEVEL, VOCABULARY)
                largest, inverse = float_of(number), float_word(words, INVERSE_TEMPERATURE)
                place = fine_place(FILTER, LEVEL)
                for block in range(BLOCKS):
                    token_ids = (program * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
                    distance = distances_of(logits, row, token_ids, largest, inverse, VOCABULARY)
                    add_fine(
                        row_counts + place, row_weights + place, distance, start, end, 10 - 10 * LEVEL,
                        FILTER == TOP_K_FILTER, uses_weights, BLOCK,
                    )  # fmt: skip


@triton.jit
def narrow_search(
    words, counts, weights, searches, FILTER: tl.constexpr, LEVEL: tl.constexpr, VOCABULARY: tl.constexpr
):
    """A filter's next search: where its bin starts and ends (int32). The row's first program keeps it for the launches
    behind this one."""
    table = counts if FILTER == TOP_K_FILTER else weights
    if LEVEL == 0:
        needed = needed_sum(words, counts, weights, searches, FILTER, VOCABULARY)
        bin, before = find(table, tl.zeros((), tl.int64), needed, COARSE_BINS)
        is_found = bin < COARSE_BINS
        start = tl.where(is_found, coarse_start(bin), NOWHERE)
        end = tl.where(is_found, coarse_start(bin + 1), NOWHERE)
        weights_before = sum_below(weights, bin, COARSE_BINS)
    else:
        place = fine_place(FILTER, 0)
        last = searches + search_place(FILTER, 0)
        found, needed = tl.load(last).to(tl.int32), tl.load(last + 1)
        bin, before = find(table + place, tl.load(last + 2), needed, FINE_BINS)
        is_found = found != NOWHERE
        start = tl.where(is_found, found + (bin << 10), NOWHERE)
        end = tl.where(is_found, start + 1024, NOWHERE)
        weights_before = tl.load(last + 3) + sum_below(weights + place, bin, FINE_BINS)
    if tl.program_id(0) == 0:
        kept = searches + search_place(FILTER, LEVEL)
        tl.store(kept, start.to(tl.int64))
        tl.store(kept + 1, needed)
        tl.store(kept + 2, before)
        tl.store(kept + 3, weights_before)
    return start, end


@triton.jit(do_not_specialize_on_alignment=["row_slots", "positions", "variables"])
def filtered_kernel(
    logits, row_slots, positions, variables, winners, counts, weights, searches,
    VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Grid (PROGRAMS, rows)."""
    begin_dependent()
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(row_slots + row)
    if slot >= 0:
        words = variables + slot * WORDS
        if has_top_k(words, VOCABULARY) | has_top_p(words):
            number = number_of(winner_of(winners, row, LOGITS, PROGRAMS))
            if is_drawn(words, number):
                at = row * BINS_A_ROW
                magnitude, room, equal = last_kept(words, counts + at, weights + at, searches + row * 4 * SEARCH_WORDS)
                position = tl.load(positions + row) + 1
                draw(
                    logits, row, position, words, float_of(number), winners, magnitude, room, equal,
                    VOCABULARY, BLOCKS, BLOCK, PROGRAMS,
                )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["row_slots", "variables", "tokens", "finite"])
def finish_kernel(row_slots, variables, winners, tokens, finite, PROGRAMS: tl.constexpr):
    """Grid (rows)."""
    begin_dependent()
    row = tl.program_id(0)
    slot = tl.load(row_slots + row)
    token, row_is_finite = tl.full((), -1, tl.int32), tl.full((), 0, tl.int32)
    if slot >= 0:
        winner = winner_of(winners, row, LOGITS, PROGRAMS)
        number = number_of(winner)
        if is_finite(number):
            if is_drawn(variables + slot * WORDS, number):
                winner = winner_of(winners, row, SCORES, PROGRAMS)
            token = token_of(winner)
            row_is_finite = tl.full((), 1, tl.int32)
    tl.store(tokens + row, token)
    tl.store(finite + row, row_is_finite)
