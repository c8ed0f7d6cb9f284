"""The sampler's launches, in their order: one, eight (three without filters), one; safe to capture.

Knows no arithmetic and no checks.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from typing import Any

import torch
import triton

from strata.kernels.dependent import dependent_options
from strata.kernels.sampler import choices, windows
from strata.kernels.sampler.buffers import BINS_A_ROW, ChoiceScratch, ChosenTokens
from strata.kernels.sampler.plan import WindowPlan
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import SlotVariables
from strata.kernels.window_rows import WindowRows

MOST_ROWS = 32  # of a window; both ends of it are one block of so many
CHOICE_WARPS = 4


def begin_window(plan: WindowPlan, variables: SlotVariables, rows: WindowRows) -> None:
    """One launch."""
    windows.begin_kernel[(1,)](
        plan.words, variables.words, rows.tokens, rows.slots, rows.positions, rows.first_rows,
        rows.segment_slots, rows.segment_starts, rows.segment_counts,
        rows.count, rows.segments, MOST_DRAFTS=plan.most_drafts, ROWS=MOST_ROWS,
        num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


def choose_tokens(
    logits: torch.Tensor, rows: WindowRows, variables: SlotVariables, scratch: ChoiceScratch, chosen: ChosenTokens
) -> None:
    """Eight launches; five of them only find out that no row has a filter, if none has."""
    grid, shape = _vocabulary_shared(logits, scratch)
    tables = (scratch.winners, scratch.counts, scratch.weights)
    _draw_unfiltered(logits, rows, variables, scratch)
    for which, level in ((0, 0), (0, 1), (1, 0), (1, 1)):  # top-k's two searches, then top-p's
        choices.narrow_kernel[grid](
            logits, rows.slots, variables.words, *tables, scratch.searches, FILTER=which, LEVEL=level, **shape
        )
    choices.filtered_kernel[grid](
        logits, rows.slots, rows.positions, variables.words, *tables, scratch.searches, **shape
    )
    _finish(rows, variables, scratch, chosen)


def choose_unfiltered_tokens(
    logits: torch.Tensor, rows: WindowRows, variables: SlotVariables, scratch: ChoiceScratch, chosen: ChosenTokens
) -> None:
    """Three launches."""
    _draw_unfiltered(logits, rows, variables, scratch)
    _finish(rows, variables, scratch, chosen)


def _vocabulary_shared(logits: torch.Tensor, scratch: ChoiceScratch) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid and the sizes of a launch in which programs share each row's vocabulary."""
    rows, vocabulary = logits.shape
    programs, block = scratch.programs, scratch.block
    return (programs, rows), {
        "VOCABULARY": vocabulary, "BLOCKS": triton.cdiv(vocabulary, block * programs), "BLOCK": block,
        "PROGRAMS": programs, "num_warps": CHOICE_WARPS, "enable_fp_fusion": False, **dependent_options(),
    }  # fmt: skip


def _draw_unfiltered(logits: torch.Tensor, rows: WindowRows, variables: SlotVariables, scratch: ChoiceScratch) -> None:
    """The largest logit of each row, and scores of those that are drawn without a filter."""
    grid, shape = _vocabulary_shared(logits, scratch)
    tables = (scratch.winners, scratch.counts, scratch.weights)
    cleared = triton.next_power_of_2(BINS_A_ROW // scratch.programs)
    choices.largest_kernel[grid](logits, rows.slots, variables.words, *tables, CLEARED=cleared, **shape)
    choices.coarse_kernel[grid](logits, rows.slots, rows.positions, variables.words, *tables, **shape)


def _finish(rows: WindowRows, variables: SlotVariables, scratch: ChoiceScratch, chosen: ChosenTokens) -> None:
    """The winner of each row."""
    choices.finish_kernel[(rows.count,)](
        rows.slots, variables.words, scratch.winners, chosen.tokens, chosen.is_finite,
        PROGRAMS=scratch.programs, num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip


def accept_rows(
    chosen: ChosenTokens,
    rows: WindowRows,
    plan: WindowPlan,
    variables: SlotVariables,
    accepted: torch.Tensor,
    results: WindowResults,
) -> None:
    """One launch."""
    windows.accept_kernel[(rows.segments,)](
        plan.words, variables.words, chosen.tokens, chosen.is_finite, rows.tokens,
        rows.segment_slots, rows.segment_starts, rows.segment_counts, accepted, results.words,
        MOST_DRAFTS=plan.most_drafts, ROWS=MOST_ROWS, num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
