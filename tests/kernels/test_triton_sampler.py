"""Triton's sampler in its interpreter chooses the twin's tokens and moves slots as it does: `make interpreter`."""

import numpy as np
import pytest
import torch

from strata.kernels.sampler import reference
from strata.kernels.sampler.buffers import ChoiceScratch, ChosenTokens
from strata.kernels.sampler.filters import weights_of
from strata.kernels.sampler.philox import gumbel as gumbel_by_definition
from strata.kernels.sampler.results import WindowResults
from strata.kernels.sampler.slots import ChoiceOptions, SlotVariables
from strata.kernels.window_rows import WindowRows
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.sampler_cases import (
    MOST_DRAFTS,
    TIES,
    ChoiceCase,
    choice_case,
    plan_of,
    random_window,
    slots_of,
    start,
    tied_case,
)

pytestmark = needs_interpreter


def check_choices(case: ChoiceCase, scratch: ChoiceScratch) -> None:
    from strata.kernels.sampler import triton

    count = case.rows.count
    found, wanted = ChosenTokens.empty(count, "cpu"), ChosenTokens.empty(count, "cpu")
    found.tokens.fill_(99)
    triton.choose_tokens(case.logits, case.rows, case.variables, scratch, found)
    reference.choose_tokens(case.logits, case.rows, case.variables, wanted)
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert found.is_finite.tolist() == wanted.is_finite.tolist()


@pytest.mark.parametrize(("vocabulary", "programs", "block"), [(300, 4, 32), (65, 2, 64), (5, 1, 16)])
def test_tokens_are_the_twins(vocabulary: int, programs: int, block: int) -> None:
    scratch = ChoiceScratch.empty(13, "cpu", programs, block)
    for tensor in (scratch.counts, scratch.weights, scratch.winners, scratch.searches):
        tensor.fill_(-5)  # any content to begin with, and then what the case before has left
    for seed in range(2):
        check_choices(choice_case(seed, 12, vocabulary), scratch)


def test_rows_without_filters_need_fewer_launches() -> None:
    from strata.kernels.sampler import triton

    rows = WindowRows.empty(4, 1, "cpu")
    rows.slots.copy_(torch.tensor([0, 1, 2, -1]))
    rows.positions.copy_(torch.tensor([0, 7, 1 << 20, 3]))
    options = [ChoiceOptions(top_k=5), ChoiceOptions(0.7, seed=3), ChoiceOptions(1.0, log_min_p=-2.0, seed=4)]
    assert not any(each.has_filters for each in options)
    variables = slots_of([start(0, each) for each in options])
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(8)) * 2.5
    found, wanted = ChosenTokens.empty(4, "cpu"), ChosenTokens.empty(4, "cpu")
    triton.choose_unfiltered_tokens(logits, rows, variables, ChoiceScratch.empty(4, "cpu", 4, 32), found)
    reference.choose_tokens(logits, rows, variables, wanted)
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert found.is_finite.tolist() == wanted.is_finite.tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("options", TIES)
def test_of_equal_logits_that_a_filter_cuts_the_first_ids_stay(options: ChoiceOptions) -> None:
    check_choices(tied_case(options, 100), ChoiceScratch.empty(6, "cpu", 4, 16))


def test_noise_and_weights_have_the_bits_of_the_definition() -> None:
    from tests.kernels.sampler_probes import numbers_kernel

    count = 1 << 15
    distances = -torch.rand(count, generator=torch.Generator().manual_seed(4)) * 34
    distances[:3] = torch.tensor([0.0, -0.0, -torch.inf])
    noise, weights = torch.empty(count), torch.empty(count, dtype=torch.int32)
    counter = torch.tensor([-3, 5, 1 << 20, 2], dtype=torch.int32)
    numbers_kernel[(1,)](distances, noise, weights, counter, COUNT=count)
    wanted = gumbel_by_definition((5 << 32) + (1 << 32) - 3, 1 << 20, torch.arange(count) * 77, 2)
    assert torch.equal(noise, wanted)
    assert torch.equal(weights, weights_of(distances))


def test_packed_logits_rise_as_the_logits_and_of_equal_ones_towards_the_first() -> None:
    from tests.kernels.sampler_probes import order_kernel

    tiny = 2.0**-149
    rising = [-torch.inf, -3e38, -1.0, -tiny, 0.0, -0.0, tiny, 1.0, 3e38, torch.inf, torch.nan, -torch.nan]
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)) % len(rising)
    values = torch.tensor(rising)[order]
    winners, token_ids = torch.empty(16, dtype=torch.int64), torch.empty(16, dtype=torch.int32)
    numbers = torch.empty(16)
    order_kernel[(1,)](values, winners, token_ids, numbers, COUNT=16)
    assert token_ids.tolist() == list(range(16))
    assert torch.equal(numbers.nan_to_num(nan=9e9), values.nan_to_num(nan=9e9))
    ranks = {4: 4, 5: 4, 10: 10, 11: 10}  # zeros are equal, and so is what is not a number
    wanted = sorted(range(16), key=lambda i: (ranks.get(int(order[i]), int(order[i])), -i))
    assert torch.sort(winners).indices.tolist() == wanted


def test_coarse_bins_hold_each_magnitude_once_and_at_most_2_to_the_20_of_them() -> None:
    from tests.kernels.sampler_probes import bins_kernel

    count = 1 << 15
    magnitudes = torch.linspace(0, 0x42000000 - 1, count, dtype=torch.float64).to(torch.int32)
    borders = (torch.arange(8, 1024) / 32).view(torch.int32)
    magnitudes[1 : 1 + 2 * len(borders)] = torch.cat([borders, borders - 1])
    magnitudes = torch.sort(magnitudes).values
    bins, starts, ends = (torch.empty(count, dtype=torch.int32) for _ in range(3))
    bins_kernel[(1,)](magnitudes, bins, starts, ends, COUNT=count)
    assert (int(bins[0]), int(bins[-1])) == (0, 2015)
    assert torch.all(bins[1:] >= bins[:-1])
    assert torch.all((starts <= magnitudes) & (magnitudes < ends) & (ends - starts <= 1 << 20))
    assert len(set(starts.tolist())) == len(set(bins.tolist()))


def test_windows_begin_and_end_as_the_twins() -> None:
    from strata.kernels.sampler import triton

    random = np.random.default_rng(5)
    for serial in range(40):
        variables, parts = random_window(random)
        plan = plan_of(serial, parts, 3, MOST_DRAFTS)
        rows = [WindowRows.empty(12, 3, "cpu") for _ in range(2)]
        rows[1].tokens.fill_(50)
        reference.begin_window(plan, variables, rows[0])
        triton.begin_window(plan, variables, rows[1])
        for name in WindowRows.__dataclass_fields__:
            assert torch.equal(getattr(rows[0], name), getattr(rows[1], name)), name

        tokens = torch.from_numpy(random.integers(0, 3, 12).astype(np.int32))
        chosen = ChosenTokens(tokens, torch.from_numpy((random.random(12) < 0.9).astype(np.int32)))
        ends = []
        for accept in (reference.accept_rows, triton.accept_rows):
            words = SlotVariables(variables.words.clone())
            accepted, results = torch.full((3,), 9, dtype=torch.int32), WindowResults.empty(3, MOST_DRAFTS, "cpu")
            accept(chosen, rows[0], plan, words, accepted, results)
            ends.append((words.words.tolist(), accepted.tolist(), results.words.tolist()))
        assert ends[0] == ends[1]
