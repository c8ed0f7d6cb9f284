"""Tokens chosen on the device between a window's logits and its commit: checks, and chooses torch's twin or Triton.

    begin_window   plan, slots            -> rows: which token each row reads, at which position of which slot
    choose_tokens  logits, rows, slots    -> a token a row, exactly the one that `sampling.Sampler` chooses
                   (choose_unfiltered_tokens: the same where no slot has a filter)
    accept_rows    tokens, rows, slots    -> how many rows each slot commits, and results for the host; slots move on

Knows logits and int32 words; no model and no request. Launches only: all buffers are given, none is read by the host.
"""

import torch

from strata.kernels.checks import check_tensor
from strata.kernels.roads import takes_reference
from strata.kernels.sampler.buffers import BINS_A_ROW, SEARCH_WORDS, ChoiceScratch, ChosenTokens
from strata.kernels.sampler.plan import WindowPlan
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import WORDS, SlotVariables
from strata.kernels.window_rows import WindowRows

MOST_ROWS = 32
LARGEST_VOCABULARY = 1 << 22  # sums of weights of 2^30 stay exact in float64


def begin_window(plan: WindowPlan, variables: SlotVariables, rows: WindowRows) -> None:
    """Fill `rows` by the plan: part s is segment s; its rows are the slot's last token and its drafts.

    A slot that is not live gets no row; drafts that its budget has no room for are left out. The plan's parts must fit
    the bucket: 1 + drafts rows each. Raises ValueError for other shapes or types.
    """
    _check_window(plan, variables, rows)
    if takes_reference(rows.tokens):
        from strata.kernels.sampler.reference import begin_window as by_definition

        by_definition(plan, variables, rows)
        return
    from strata.kernels.sampler.triton import begin_window as by_kernels

    by_kernels(plan, variables, rows)


def choose_tokens(
    logits: torch.Tensor, rows: WindowRows, variables: SlotVariables, scratch: ChoiceScratch, chosen: ChosenTokens
) -> None:
    """Choose the token behind each row of logits float32 [rows, vocabulary]: the draw of its position + 1.

    Raises ValueError for other shapes or types.
    """
    _check_choice(logits, rows, variables, scratch, chosen)
    if takes_reference(logits):
        from strata.kernels.sampler.reference import choose_tokens as by_definition

        by_definition(logits, rows, variables, chosen)
        return
    from strata.kernels.sampler.triton import choose_tokens as by_kernels

    by_kernels(logits, rows, variables, scratch, chosen)


def choose_unfiltered_tokens(
    logits: torch.Tensor, rows: WindowRows, variables: SlotVariables, scratch: ChoiceScratch, chosen: ChosenTokens
) -> None:
    """The same in fewer launches, where no row's slot has `ChoiceOptions.has_filters`: nothing here checks that."""
    _check_choice(logits, rows, variables, scratch, chosen)
    if takes_reference(logits):
        from strata.kernels.sampler.reference import choose_tokens as by_definition

        by_definition(logits, rows, variables, chosen)
        return
    from strata.kernels.sampler.triton import choose_unfiltered_tokens as by_kernels

    by_kernels(logits, rows, variables, scratch, chosen)


def accept_rows(
    chosen: ChosenTokens,
    rows: WindowRows,
    plan: WindowPlan,
    variables: SlotVariables,
    accepted: torch.Tensor,
    results: WindowResults,
) -> None:
    """Which tokens stand: int32 `accepted` [segments] rows of each segment are to be committed; slots move on.

    A row's token counts if all drafts before it were the tokens chosen for them. A stop id ends the reply with itself,
    the budget with its last token; what stands behind either is not accepted. If a row that counts is not finite, the
    slot gets no token, an error, and is not live any more. Raises ValueError for other shapes or types.
    """
    _check_window(plan, variables, rows)
    _check_chosen(chosen, rows)
    check_tensor("accepted", accepted, (rows.segments,), torch.int32)
    if (results.segments, results.most_drafts) != (plan.segments, plan.most_drafts):
        raise ValueError(
            f"results of {results.segments} segments with {results.most_drafts} drafts are not those of a plan of "
            f"{plan.segments} with {plan.most_drafts}"
        )
    if takes_reference(rows.tokens):
        from strata.kernels.sampler.reference import accept_rows as by_definition

        by_definition(chosen, rows, plan, variables, accepted, results)
        return
    from strata.kernels.sampler.triton import accept_rows as by_kernels

    by_kernels(chosen, rows, plan, variables, accepted, results)


def _check_window(plan: WindowPlan, variables: SlotVariables, rows: WindowRows) -> None:
    check_tensor("variables.words", variables.words, (variables.count, WORDS), torch.int32)
    if rows.count > MOST_ROWS or rows.segments > MOST_ROWS:
        raise ValueError(f"a window has at most {MOST_ROWS} rows, not {rows.count} in {rows.segments} segments")
    if plan.segments != rows.segments:
        raise ValueError(f"a plan of {plan.segments} segments is not one for rows of {rows.segments}")


def _check_choice(
    logits: torch.Tensor, rows: WindowRows, variables: SlotVariables, scratch: ChoiceScratch, chosen: ChosenTokens
) -> None:
    check_tensor("variables.words", variables.words, (variables.count, WORDS), torch.int32)
    vocabulary = logits.shape[-1]
    if not 1 <= vocabulary <= LARGEST_VOCABULARY:
        raise ValueError(f"a row has {vocabulary} logits; from 1 to {LARGEST_VOCABULARY} can be chosen from")
    check_tensor("logits", logits, (rows.count, vocabulary), torch.float32)
    check_tensor("scratch.winners", scratch.winners, (rows.count, 2, scratch.programs), torch.int64)
    check_tensor("scratch.counts", scratch.counts, (rows.count, BINS_A_ROW), torch.int32)
    check_tensor("scratch.weights", scratch.weights, (rows.count, BINS_A_ROW), torch.int64)
    check_tensor("scratch.searches", scratch.searches, (rows.count, 2, 2, SEARCH_WORDS), torch.int64)
    _check_chosen(chosen, rows)


def _check_chosen(chosen: ChosenTokens, rows: WindowRows) -> None:
    check_tensor("chosen.tokens", chosen.tokens, (rows.count,), torch.int32)
    check_tensor("chosen.is_finite", chosen.is_finite, (rows.count,), torch.int32)
