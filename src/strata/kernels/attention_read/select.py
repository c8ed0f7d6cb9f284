"""The best blocks of many rows of a read on a GPU, a program a row. Knows scores and their order alone.

If as many groups of blocks are chosen as blocks are, by their greatest scores and the lower one first among equals, all
blocks that are to be chosen lie in these groups: a block outside has as many before it as there are groups, one in
each. So of a long row the greatest scores are read, and the scores of few groups.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import triton
import triton.language as tl

from strata.kernels.attention_rows.select import search, select_best


@triton.jit
def select_members(
    scores, groups, chosen, complete, TOP: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """The best blocks of the first TOP groups, or, where there are more, of the TOP `groups`; rising, into `chosen`."""
    SIZE: tl.constexpr = PADDED * GROUP
    count = tl.cdiv(complete, GROUP)
    i = tl.arange(0, PADDED)
    group = tl.load(groups + i, mask=i < tl.where(count > TOP, TOP, 0), other=0)
    group = tl.where(count > TOP, group, i)
    block = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    exists = (i < TOP)[:, None] & (block < complete)
    score = tl.load(scores + block, mask=exists, other=0.0)
    keys = tl.where(exists, tl.minimum(score.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0x7FFFFFFE), -1)
    candidates = tl.minimum(complete, TOP * GROUP)  # hardly fewer: only the last group may not be complete
    low, high, room = search(tl.reshape(keys, (SIZE,)), scores, candidates, TOP, SIZE, True)
    is_above, is_between = keys > high, (keys > low) & (keys <= high)
    counted = (is_above.to(tl.int32) << 16) + is_between.to(tl.int32)
    of_groups = tl.sum(counted, axis=1)
    up_to = (tl.cumsum(of_groups, axis=0) - of_groups)[:, None] + tl.cumsum(counted, axis=1)
    between = up_to & 0xFFFF
    place = (up_to >> 16) + tl.minimum(between, room) - 1
    tl.store(chosen + place, block, mask=is_above | (is_between & (between <= room)))


@triton.jit(do_not_specialize=["position"])
def select_kernel(
    scores, greatest, groups, chosen, step, position,
    RATIO: tl.constexpr, TOP: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr,
    FEW: tl.constexpr, MANY: tl.constexpr, IS_ONE_CHUNK: tl.constexpr,
):  # fmt: skip
    """scores [rows, step] of rows from `position` on, greatest [rows, step / GROUP] -> chosen [rows, TOP]; grid (rows).

    FEW, MANY: groups that registers hold, where there are no more than FEW, and where there are. IS_ONE_CHUNK: no slot
    has more than MANY. PADDED: TOP as a power of two.
    """
    row = tl.program_id(0)
    complete = (position + row + 1) // RATIO
    count = tl.cdiv(complete, GROUP)
    row_greatest, row_groups = greatest + row * (step // GROUP), groups + row * TOP
    if count > TOP:
        if count <= FEW:
            select_best(row_greatest, row_groups, count, TOP, FEW, True)
        else:
            select_best(row_greatest, row_groups, count, TOP, MANY, IS_ONE_CHUNK)
        tl.debug_barrier()  # each thread now sees what the others have written
    select_members(scores + row * step, row_groups, chosen + row * TOP, complete, TOP, PADDED, GROUP)
