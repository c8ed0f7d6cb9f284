"""The launches at a window's two ends: which rows it has, and which of their tokens stand.

Know int32 words of plans, slots and results; no logits. Rows and segments are at most ROWS, a power of two.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent
from strata.kernels.sampler import plan, results, slots

PLAN_HEADER, PLAN_PART = tl.constexpr(plan.HEADER_WORDS), tl.constexpr(plan.PART_WORDS)
RESULT_HEADER, RESULT_PART = tl.constexpr(results.HEADER_WORDS), tl.constexpr(results.PART_WORDS)
GOES_ON, STOPPED, OUT_OF_BUDGET = (
    tl.constexpr(reason) for reason in (results.GOES_ON, results.STOPPED, results.OUT_OF_BUDGET)
)
NO_ERROR, NOT_FINITE = tl.constexpr(results.NO_ERROR), tl.constexpr(results.NOT_FINITE)
WORDS, POSITION, LAST_TOKEN = (tl.constexpr(word) for word in (slots.WORDS, slots.POSITION, slots.LAST_TOKEN))
BUDGET, IS_LIVE, STOP_IDS = (tl.constexpr(word) for word in (slots.BUDGET, slots.IS_LIVE, slots.STOP_IDS))
MOST_STOP_IDS = tl.constexpr(slots.MOST_STOP_IDS)


@triton.jit(
    do_not_specialize=["rows_of_bucket", "segments"],
    do_not_specialize_on_alignment=[
        "plan_words", "variables", "tokens", "row_slots", "positions", "first_rows",
        "segment_slots", "segment_starts", "segment_counts",
    ]
)  # fmt: skip
def begin_kernel(
    plan_words, variables, tokens, row_slots, positions, first_rows, segment_slots, segment_starts, segment_counts,
    rows_of_bucket, segments, MOST_DRAFTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program."""
    begin_dependent()
    segment = tl.arange(0, ROWS)
    part = plan_words + PLAN_HEADER + segment * (PLAN_PART + MOST_DRAFTS)
    is_segment = segment < segments
    planned = tl.load(part, mask=is_segment, other=-1)
    drafts = tl.load(part + 1, mask=planned >= 0, other=0)
    slot = tl.maximum(planned, 0)
    words = variables + slot * WORDS
    is_live = (planned >= 0) & (tl.load(words + IS_LIVE, mask=planned >= 0, other=0) != 0)
    budget = tl.load(words + BUDGET, mask=is_live, other=0)
    count = tl.where(is_live, tl.minimum(drafts + 1, budget), 0)
    start = tl.where(is_live, tl.cumsum(count, axis=0) - count, 0)
    tl.store(segment_slots + segment, tl.where(is_live, slot, -1), mask=is_segment)
    tl.store(segment_starts + segment, start, mask=is_segment)
    tl.store(segment_counts + segment, count, mask=is_segment)

    row = tl.arange(0, ROWS)
    is_its = (row[:, None] >= start[None, :]) & (row[:, None] < (start + count)[None, :])
    is_used = tl.max(is_its.to(tl.int32), axis=1) > 0
    row_slot = tl.sum(tl.where(is_its, slot[None, :], 0), axis=1)
    row_start = tl.sum(tl.where(is_its, start[None, :], 0), axis=1)
    row_segment = tl.sum(tl.where(is_its, segment[None, :], 0), axis=1)
    index = row - row_start
    words = variables + row_slot * WORDS
    last = tl.load(words + LAST_TOKEN, mask=is_used, other=0)
    position = tl.load(words + POSITION, mask=is_used, other=0) + index
    at = plan_words + PLAN_HEADER + row_segment * (PLAN_PART + MOST_DRAFTS) + PLAN_PART + index - 1
    draft = tl.load(at, mask=is_used & (index > 0), other=0)
    is_row = row < rows_of_bucket
    tl.store(tokens + row, tl.where(index == 0, last, draft), mask=is_row)
    tl.store(row_slots + row, tl.where(is_used, row_slot, -1), mask=is_row)
    tl.store(positions + row, tl.where(is_used, position, 0), mask=is_row)
    tl.store(first_rows + row, row_start, mask=is_row)


@triton.jit(
    do_not_specialize_on_alignment=[
        "plan_words", "variables", "chosen", "finite", "tokens",
        "segment_slots", "segment_starts", "segment_counts", "accepted", "result_words",
    ]
)  # fmt: skip
def accept_kernel(
    plan_words, variables, chosen, finite, tokens,
    segment_slots, segment_starts, segment_counts, accepted, result_words,
    MOST_DRAFTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (segments)."""
    begin_dependent()
    segment = tl.program_id(0)
    slot = tl.load(segment_slots + segment)
    start, rows = tl.load(segment_starts + segment), tl.load(segment_counts + segment)
    index = tl.arange(0, ROWS)
    is_row = index < rows
    token = tl.load(chosen + start + index, mask=is_row, other=-1)
    next_draft = tl.load(tokens + start + index + 1, mask=index + 1 < rows, other=-1)
    standing = tl.min(tl.where((index + 1 < rows) & (token != next_draft), index + 1, rows), axis=0)
    is_bad = tl.load(finite + start + index, mask=index < standing, other=1) == 0
    count, reason, error = tl.full((), 0, tl.int32), tl.full((), GOES_ON, tl.int32), tl.full((), NO_ERROR, tl.int32)
    if slot >= 0:
        words = variables + slot * WORDS
        budget = tl.load(words + BUDGET)
        if tl.max(is_bad.to(tl.int32), axis=0) > 0:
            error = tl.full((), NOT_FINITE, tl.int32)
        else:
            stop_ids = tl.load(words + STOP_IDS + tl.arange(0, MOST_STOP_IDS))
            is_stop = tl.max((token[:, None] == stop_ids[None, :]).to(tl.int32), axis=1) > 0
            end = tl.min(tl.where(is_stop & (index < standing), index + 1, ROWS + 1), axis=0)
            count = tl.minimum(tl.minimum(standing, end), budget)
            reason = tl.where(count == end, STOPPED, tl.where(count == budget, OUT_OF_BUDGET, GOES_ON))
            tl.store(words + LAST_TOKEN, tl.sum(tl.where(index == count - 1, token, 0), axis=0))
        position = tl.load(words + POSITION)
        tl.store(words + POSITION, position + count)
        tl.store(words + BUDGET, budget - count)
        if (reason != GOES_ON) | (error != NO_ERROR):
            tl.store(words + IS_LIVE, 0)
    tl.store(accepted + segment, count)
    part = result_words + RESULT_HEADER + segment * (RESULT_PART + MOST_DRAFTS + 1)
    tl.store(part, slot)
    tl.store(part + 1, count)
    tl.store(part + 2, reason)
    tl.store(part + 3, error)
    tl.store(part + RESULT_PART + index, tl.where(index < count, token, -1), mask=index <= MOST_DRAFTS)
    if segment == 0:
        tl.store(result_words, tl.load(plan_words))
