"""The sampler's twin chooses what `Sampler` chooses, begins and ends windows as the engine does, refuses the rest."""

import math

import numpy as np
import pytest
import torch

from strata.engine.reply import Reply
from strata.engine.request import TokenRequest
from strata.errors import EngineError
from strata.kernels.sampler import accept_rows, begin_window, choose_tokens
from strata.kernels.sampler.buffers import ChoiceScratch, ChosenTokens
from strata.kernels.sampler.filters import keep_top_p, weights_of
from strata.kernels.sampler.plan import PlannedPart, WindowPlan, parts_of, plan_words
from strata.kernels.sampler.reference import NOTHING
from strata.kernels.sampler.results import (
    GOES_ON,
    NO_ERROR,
    NOT_FINITE,
    OUT_OF_BUDGET,
    STOPPED,
    PartResult,
    WindowResults,
    read_results,
    result_words,
)
from strata.kernels.sampler.slots import (
    BUDGET,
    IS_LIVE,
    LAST_TOKEN,
    POSITION,
    ChoiceOptions,
    SlotVariables,
    options_of,
    slot_words,
)
from strata.kernels.window_rows import WindowRows
from strata.sampling.draw import Draw
from strata.sampling.options import SamplingOptions
from strata.sampling.sampler import Sampler
from strata.types import FinishReason
from tests.kernels.sampler_cases import choice_case, plan_of, slots_of, start

GREEDY = ChoiceOptions()


def chosen_of(case_rows: WindowRows, logits: torch.Tensor, variables: SlotVariables) -> tuple[list[int], list[int]]:
    chosen = ChosenTokens.empty(case_rows.count, "cpu")
    choose_tokens(logits, case_rows, variables, ChoiceScratch.empty(case_rows.count, "cpu"), chosen)
    return chosen.tokens.tolist(), chosen.is_finite.tolist()


@pytest.mark.parametrize("vocabulary", [1, 7, 60, 400])
def test_tokens_are_those_of_the_sampler(vocabulary: int) -> None:
    """800 rows of each vocabulary, options at random: what the host draws at the position behind the row."""
    failed = 0
    for seed in range(40):
        case = choice_case(seed, 20, vocabulary)
        tokens, is_finite = chosen_of(case.rows, case.logits, case.variables)
        assert (tokens[-1], is_finite[-1]) == (-1, 0)
        for row, options in enumerate(case.options):
            sampler = Sampler(options, vocabulary, choice=int(case.rows.slots[row]) % 3)
            try:
                expected = sampler.sample(case.logits[row], int(case.rows.positions[row]) + 1).token_id
            except EngineError:
                failed += 1
                expected = -1
            assert (tokens[row], is_finite[row]) == (expected, int(expected >= 0)), (seed, row, options)
    assert 24 < failed < 120


def test_weights_are_probabilities_in_units_of_2_to_the_minus_30() -> None:
    distances = -torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 22
    wanted = np.exp(distances.double().numpy()) * 2**30
    found = weights_of(distances).double().numpy()
    assert np.all(np.abs(found - wanted) <= 1 + wanted * 3e-7)
    assert weights_of(torch.tensor([0.0, -0.0, -21.0, -math.inf])).tolist() == [2**30, 2**30, 0, 0]
    rising = weights_of(torch.sort(distances).values)
    assert torch.all(rising[1:] >= rising[:-1])


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("p", [1e-12, 0.3, 0.9, 0.999999])
def test_top_p_keeps_the_fewest_whose_integers_reach_its_share(scale: float, p: float) -> None:
    random = np.random.default_rng(int(scale * 100))
    for _ in range(30):
        row = torch.from_numpy(np.round(random.normal(0, scale, 50) * 8).astype(np.float32) / 8)
        weights = weights_of(row - row.max()).tolist()
        enough, total, expected = p * sum(weights), 0, set[int]()
        for token_id in sorted(range(50), key=lambda i: (-row[i], i)):
            expected.add(token_id)
            total += weights[token_id]
            if total >= enough:
                break
        kept = torch.isfinite(keep_top_p(row[None], p)[0])
        assert set(torch.nonzero(kept).flatten().tolist()) == expected


def test_a_window_has_the_rows_of_live_slots_side_by_side() -> None:
    variables = slots_of([start(100, GREEDY, last=5), start(7, GREEDY, budget=2, last=6), start(40, GREEDY, last=8)])
    variables.words[2, IS_LIVE] = 0
    plan = plan_of(9, [PlannedPart(1, (11, 12, 13)), PlannedPart(2, (14,)), PlannedPart(0, (15, 16))], 4, 3)
    rows = WindowRows.empty(8, 4, "cpu")
    rows.tokens.fill_(77)  # what a window before has left
    begin_window(plan, variables, rows)
    assert rows.tokens.tolist() == [6, 11, 5, 15, 16, 0, 0, 0]  # a budget of two has room for one draft
    assert rows.slots.tolist() == [1, 1, 0, 0, 0, -1, -1, -1]
    assert rows.positions.tolist() == [7, 8, 100, 101, 102, 0, 0, 0]
    assert rows.first_rows.tolist() == [0, 0, 2, 2, 2, 0, 0, 0]
    assert rows.segment_slots.tolist() == [1, -1, 0, -1]
    assert rows.segment_starts.tolist() == [0, 0, 2, 0]
    assert rows.segment_counts.tolist() == [2, 0, 3, 0]


REASONS = {None: GOES_ON, FinishReason.STOP: STOPPED, FinishReason.LENGTH: OUT_OF_BUDGET}


def test_what_stands_is_what_the_engine_takes() -> None:
    """Windows of one slot with tokens at random from few, so that drafts agree, replies stop and budgets end."""
    random = np.random.default_rng(3)
    seen = set()
    for serial in range(2_000):
        budget, position = int(random.integers(1, 7)), int(random.integers(0, 1000))
        drafts = tuple(random.integers(0, 3, min(int(random.integers(0, 5)), budget - 1)).tolist())
        tokens = random.integers(0, 3, len(drafts) + 1).tolist()
        stop_ids = tuple(random.integers(0, 20, 3).tolist())
        variables = slots_of([start(position, GREEDY, budget, stop_ids, last=1)])
        plan, rows = plan_of(serial, [PlannedPart(0, drafts)], 1, 4), WindowRows.empty(6, 1, "cpu")
        begin_window(plan, variables, rows)
        chosen = ChosenTokens.empty(6, "cpu")
        chosen.tokens[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        chosen.is_finite[: len(tokens)] = 1
        accepted, results = torch.full((1,), -7, dtype=torch.int32), WindowResults.empty(1, 4, "cpu")
        accept_rows(chosen, rows, plan, variables, accepted, results)

        agreed = next((i for i, draft in enumerate(drafts) if tokens[i] != draft), len(drafts))
        request = TokenRequest((1,), SamplingOptions(), frozenset(stop_ids))
        reply = Reply(request, Sampler(SamplingOptions(), 20), torch.tensor([1]), budget)
        taken, reason = reply.take([Draw(token) for token in tokens[: agreed + 1]])
        expected = PartResult(0, tuple(draw.token_id for draw in taken), REASONS[reason], NO_ERROR)
        assert read_results(results.words.tolist(), 1, 4) == (serial, [expected])
        assert accepted.tolist() == [len(taken)]
        words = variables.words[0].tolist()
        assert words[POSITION] == position + len(taken)
        assert (words[BUDGET], words[LAST_TOKEN]) == (budget - reply.length, reply.last_token)
        assert words[IS_LIVE] == (reason is None)
        seen.add((len(taken), reason))
    assert len(seen) > 10


@pytest.mark.parametrize(("bad_row", "is_reached"), [(0, True), (1, True), (2, False)])
def test_a_row_that_is_not_finite_ends_its_reply_if_it_counts(bad_row: int, is_reached: bool) -> None:
    variables = slots_of([start(5, GREEDY, last=1), start(50, GREEDY, last=2)])
    plan, rows = plan_of(4, [PlannedPart(0, (10, 99)), PlannedPart(1)], 3, 2), WindowRows.empty(4, 3, "cpu")
    begin_window(plan, variables, rows)
    chosen = ChosenTokens(torch.tensor([10, 11, 12, 13], dtype=torch.int32), torch.ones(4, dtype=torch.int32))
    chosen.is_finite[bad_row] = 0
    before = variables.words.clone()
    accepted, results = torch.zeros(3, dtype=torch.int32), WindowResults.empty(3, 2, "cpu")
    accept_rows(chosen, rows, plan, variables, accepted, results)
    first = PartResult(0, (), GOES_ON, NOT_FINITE) if is_reached else PartResult(0, (10, 11), GOES_ON, NO_ERROR)
    second = PartResult(1, (13,), GOES_ON, NO_ERROR)
    assert read_results(results.words.tolist(), 3, 2) == (4, [first, second, NOTHING])
    assert accepted.tolist() == [len(first.tokens), 1, 0]
    if is_reached:
        before[0, IS_LIVE] = 0
        assert torch.equal(variables.words[0], before[0])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_windows_with_drafts_give_the_reply_without_drafts(temperature: float) -> None:
    """Two slots, drafts right and wrong, until both have ended; the token behind a row depends on the row's token."""
    options = SamplingOptions(temperature=temperature, top_k=20, top_p=0.9, seed=8)
    table = torch.randn(50, 50, generator=torch.Generator().manual_seed(1)) * 2
    sampler, expected = Sampler(options, 50), list[int]([3])
    for position in range(10, 70):
        expected.append(sampler.sample(table[expected[-1]], position + 1).token_id)
    device_options = sampler.device_options
    assert device_options is not None
    variables = slots_of([start(10, device_options, 60, last=3), start(10, device_options, 23, last=3)])
    random, replies = np.random.default_rng(2), ([3], [3])
    for serial in range(100):
        parts = []
        for slot, reply in enumerate(replies):
            right = expected[len(reply) : len(reply) + int(random.integers(0, 4))]
            drafts = [token if random.random() < 0.8 else (token + 1) % 50 for token in right]
            parts.append(PlannedPart(slot, tuple(drafts)))
        plan, rows = plan_of(serial, parts, 2, 3), WindowRows.empty(8, 2, "cpu")
        begin_window(plan, variables, rows)
        chosen, results = ChosenTokens.empty(8, "cpu"), WindowResults.empty(2, 3, "cpu")
        choose_tokens(table[rows.tokens], rows, variables, ChoiceScratch.empty(8, "cpu"), chosen)
        accept_rows(chosen, rows, plan, variables, torch.zeros(2, dtype=torch.int32), results)
        for reply, part in zip(replies, read_results(results.words.tolist(), 2, 3)[1], strict=True):
            reply.extend(part.tokens)
        if not variables.words[:, IS_LIVE].any():
            break
    assert replies == (expected[:61], expected[:24])


def test_words_hold_what_they_are_told() -> None:
    options = ChoiceOptions(0.5, 2**31 - 1, 0.1 + 0.2, -3.5, 2**64 - 2**33 + 7, 5)
    assert options_of(slot_words(start(1, options))) == options
    assert options_of(slot_words(start(1, ChoiceOptions(seed=-1, top_k=2**40)))) == ChoiceOptions(
        seed=2**64 - 1, top_k=2**31 - 1
    )
    assert all(-(2**31) <= word < 2**31 for word in slot_words(start(1, options)))
    parts = [PlannedPart(3, (1, 2)), PlannedPart(0)]
    assert parts_of(plan_words(1, parts, 3, 2), 3, 2) == [*parts, PlannedPart(-1)]
    results = [PartResult(2, (4, 5), STOPPED, NO_ERROR), NOTHING]
    assert read_results(result_words(6, results, 3), 2, 3) == (6, results)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([PlannedPart(0), PlannedPart(1), PlannedPart(2)], "2 segments has no room for 3 slots"),
        ([PlannedPart(0, (1, 2))], "slot 0 has 2 drafts; a part has room for 1"),
        ([PlannedPart(4), PlannedPart(4)], r"names the slots \[4, 4\]"),
    ],
)
def test_plans_that_do_not_fit_are_refused(parts: list[PlannedPart], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_words(1, parts, 2, 1)


def test_replies_that_a_slot_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="room for 16 stop ids; there are 17"):
        slot_words(start(0, GREEDY, stop_ids=range(17)))
    with pytest.raises(ValueError, match="its budget is 0"):
        slot_words(start(0, GREEDY, budget=0))


def test_arguments_of_other_shapes_are_refused() -> None:
    rows, variables, chosen = WindowRows.empty(2, 1, "cpu"), SlotVariables.empty(1, "cpu"), ChosenTokens.empty(2, "cpu")
    scratch, logits = ChoiceScratch.empty(2, "cpu"), torch.zeros(2, 5)
    with pytest.raises(ValueError, match=r"logits must be contiguous torch.float32 \[2, 5\]"):
        choose_tokens(logits.double(), rows, variables, scratch, chosen)
    with pytest.raises(ValueError, match="logits must be"):
        choose_tokens(torch.zeros(3, 5), rows, variables, scratch, chosen)
    with pytest.raises(ValueError, match=r"scratch\.winners must be"):
        choose_tokens(logits, rows, variables, ChoiceScratch.empty(1, "cpu"), chosen)
    with pytest.raises(ValueError, match=r"chosen\.tokens must be"):
        choose_tokens(logits, rows, variables, scratch, ChosenTokens.empty(1, "cpu"))
    with pytest.raises(ValueError, match="0 logits"):
        choose_tokens(torch.zeros(2, 0), rows, variables, scratch, chosen)
    plan, results = WindowPlan.empty(2, 3, "cpu"), WindowResults.empty(1, 2, "cpu")
    with pytest.raises(ValueError, match="plan of 2 segments"):
        begin_window(plan, variables, rows)
    with pytest.raises(ValueError, match="at most 32 rows, not 33"):
        begin_window(plan, variables, WindowRows.empty(33, 2, "cpu"))
    plan, accepted = WindowPlan.empty(1, 3, "cpu"), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="results of 1 segments with 2 drafts"):
        accept_rows(chosen, rows, plan, variables, accepted, results)
    with pytest.raises(ValueError, match="accepted must be"):
        accept_rows(chosen, rows, plan, variables, accepted.long(), WindowResults.empty(1, 3, "cpu"))
