"""What the sampler's kernels compute, in torch and integers on the CPU; works for tensors of any device, by copies.

Knows what each result is; not how programs share the work. Results are exact: kernels give the same integers.
"""

from collections.abc import Sequence

import torch

from strata.kernels.sampler import slots
from strata.kernels.sampler.buffers import ChosenTokens
from strata.kernels.sampler.filters import draw_token, keep_min_p, keep_top_k, keep_top_p, scale_by_temperature
from strata.kernels.sampler.plan import WindowPlan, parts_of
from strata.kernels.sampler.results import (
    GOES_ON,
    NO_ERROR,
    NOT_FINITE,
    OUT_OF_BUDGET,
    STOPPED,
    PartResult,
    WindowResults,
    result_words,
)
from strata.kernels.sampler.slots import ChoiceOptions, SlotVariables, options_of
from strata.kernels.window_rows import WindowRows

NOTHING = PartResult(-1, (), GOES_ON, NO_ERROR)


def begin_window(plan: WindowPlan, variables: SlotVariables, rows: WindowRows) -> None:
    """See the package."""
    empty = WindowRows.empty(rows.count, rows.segments, "cpu")
    words = variables.words.tolist()
    first = 0
    for segment, part in enumerate(parts_of(plan.words.tolist(), plan.segments, plan.most_drafts)):
        if part.slot < 0 or not words[part.slot][slots.IS_LIVE]:
            continue
        slot = words[part.slot]
        tokens = [slot[slots.LAST_TOKEN], *part.drafts][: slot[slots.BUDGET]]
        place = slice(first, first + len(tokens))
        empty.tokens[place] = torch.tensor(tokens, dtype=torch.int32)
        empty.slots[place] = part.slot
        empty.positions[place] = slot[slots.POSITION] + torch.arange(len(tokens), dtype=torch.int32)
        empty.first_rows[place] = first
        empty.segment_slots[segment] = part.slot
        empty.segment_starts[segment] = first
        empty.segment_counts[segment] = len(tokens)
        first = place.stop
    for name in WindowRows.__dataclass_fields__:
        getattr(rows, name).copy_(getattr(empty, name))


def choose_tokens(logits: torch.Tensor, rows: WindowRows, variables: SlotVariables, chosen: ChosenTokens) -> None:
    """See the package."""
    words, positions = variables.words.tolist(), rows.positions.tolist()
    tokens, is_finite = [-1] * rows.count, [0] * rows.count
    for row, slot in enumerate(rows.slots.tolist()):
        if slot < 0:
            continue
        row_logits = logits[row].cpu()
        largest = float(row_logits.max())  # NaN counts as the largest
        if largest - largest == 0:  # which is not so of NaN and of infinite ones
            is_finite[row] = 1
            tokens[row] = choose_token(row_logits, options_of(words[slot]), positions[row] + 1)
    chosen.tokens.copy_(torch.tensor(tokens, dtype=torch.int32))
    chosen.is_finite.copy_(torch.tensor(is_finite, dtype=torch.int32))


def choose_token(logits: torch.Tensor, options: ChoiceOptions, position: int) -> int:
    """The token of a finite row `[vocabulary]` at a position."""
    if options.inverse_temperature == 0:
        return int(torch.nonzero(logits == logits.max())[0])
    scaled = scale_by_temperature(logits[None], options.inverse_temperature)
    if options.top_k > 0:
        scaled = keep_top_k(scaled, options.top_k)
    if options.top_p < 1:
        scaled = keep_top_p(scaled, options.top_p)
    if options.log_min_p > float("-inf"):
        scaled = keep_min_p(scaled, options.log_min_p)
    return draw_token(scaled[0], options.seed, position, options.choice)


def accept_rows(
    chosen: ChosenTokens,
    rows: WindowRows,
    plan: WindowPlan,
    variables: SlotVariables,
    accepted: torch.Tensor,
    results: WindowResults,
) -> None:
    """See the package."""
    words = variables.words.cpu()
    tokens, is_finite, read = chosen.tokens.tolist(), chosen.is_finite.tolist(), rows.tokens.tolist()
    segments = zip(rows.segment_slots.tolist(), rows.segment_starts.tolist(), rows.segment_counts.tolist(), strict=True)
    parts = []
    for slot, start, count in segments:
        if slot < 0:
            parts.append(NOTHING)
            continue
        standing = 1
        while standing < count and tokens[start + standing - 1] == read[start + standing]:
            standing += 1
        place = slice(start, start + standing)
        part = PartResult(slot, (), GOES_ON, NOT_FINITE)
        if all(is_finite[place]):
            part = _until_end(slot, tokens[place], words[slot].tolist())
        _move_on(words[slot], part)
        parts.append(part)
    variables.words.copy_(words)
    accepted.copy_(torch.tensor([len(part.tokens) for part in parts], dtype=torch.int32))
    numbers = result_words(int(plan.words[0]), parts, results.most_drafts)
    results.words.copy_(torch.tensor(numbers, dtype=torch.int32))


def _until_end(slot: int, tokens: Sequence[int], words: Sequence[int]) -> PartResult:
    stop_ids = words[slots.STOP_IDS : slots.STOP_IDS + slots.MOST_STOP_IDS]
    for count, token in enumerate(tokens, start=1):
        if token in stop_ids:
            return PartResult(slot, tuple(tokens[:count]), STOPPED, NO_ERROR)
        if count == words[slots.BUDGET]:
            return PartResult(slot, tuple(tokens[:count]), OUT_OF_BUDGET, NO_ERROR)
    return PartResult(slot, tuple(tokens), GOES_ON, NO_ERROR)


def _move_on(words: torch.Tensor, part: PartResult) -> None:
    count = len(part.tokens)
    words[slots.POSITION] += count
    words[slots.BUDGET] -= count
    if count > 0:
        words[slots.LAST_TOKEN] = part.tokens[-1]
    if part.reason != GOES_ON or part.error != NO_ERROR:
        words[slots.IS_LIVE] = 0
