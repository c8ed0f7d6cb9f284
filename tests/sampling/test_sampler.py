"""A choice depends on its row, options, seed, position and history alone, and follows the distribution."""

import numpy as np
import pytest
import torch

from strata.errors import EngineError, RequestError
from strata.kernels.sampler.filters import draw_token
from strata.kernels.sampler.philox import gumbel
from strata.sampling.options import SamplingOptions
from strata.sampling.sampler import Sampler
from strata.sampling.transforms import transform

VOCABULARY = 300


def rows(count: int, vocabulary: int = VOCABULARY, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(count)) * scale


def reply(sampler: Sampler, logits: torch.Tensor, first: int = 0) -> list[int]:
    ids = []
    for index, row in enumerate(logits):
        ids.append(sampler.sample(row, first + index).token_id)
        sampler.commit(ids[-1:])
    return ids


def test_greedy_takes_the_largest_and_the_lower_id_of_equals() -> None:
    sampler = Sampler(SamplingOptions(), VOCABULARY)
    logits = rows(20)
    logits[3, [7, 100, 250]] = 99.0
    assert reply(sampler, logits) == logits.argmax(dim=-1).tolist()
    assert sampler.sample(logits[3], 0).token_id == 7
    assert sampler.sample(logits[3].to(torch.bfloat16), 0).token_id == 7


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(temperature=1.0, seed=11),
        SamplingOptions(temperature=0.7, top_k=4, seed=12),
        SamplingOptions(temperature=1.5, top_p=0.8, min_p=0.05, logit_bias={2: 1.0}, seed=13),
    ],
)
def test_draws_follow_the_distribution(options: SamplingOptions) -> None:
    """Chi-square over 1,500 positions; the limit is passed by chance once in a thousand seeds, and these are fixed."""
    logits = torch.tensor([0.5, 2.0, 1.0, -1.0, 0.0, 1.5, -3.0, 0.7])
    sampler, draws = Sampler(options, 8), 1_500
    counts = np.zeros(8)
    for position in range(draws):
        counts[sampler.sample(logits, position).token_id] += 1
    expected = torch.softmax(transform(logits[None], options)[0].double(), dim=-1).numpy() * draws
    assert np.all(counts[expected == 0] == 0)
    some = expected > 0
    chi_square = ((counts[some] - expected[some]) ** 2 / expected[some]).sum()
    limits = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3}
    assert chi_square < limits[int(some.sum()) - 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_held_back_comes_no_sooner_than_its_position(temperature: float) -> None:
    logits = rows(8)
    logits[:, 7] = 50.0  # the end, far the likeliest
    options = SamplingOptions(temperature=temperature, seed=3, logprobs=0)
    sampler = Sampler(options, VOCABULARY)
    sampler.hold_back({7, VOCABULARY + 5}, until_position=103)
    draws = [sampler.sample(row, 100 + index) for index, row in enumerate(logits)]
    assert [draw.token_id == 7 for draw in draws] == [False] * 3 + [True] * 5
    model = torch.log_softmax(logits[0].double(), dim=-1)[draws[0].token_id]
    assert draws[0].logprob == pytest.approx(float(model), abs=1e-4)  # of the model's own distribution
    assert [draw.token_id for draw in sampler.verify(logits[1:5], 101, [d.token_id for d in draws[1:4]])] == [
        draw.token_id for draw in draws[1:5]
    ]


def test_draws_of_several_replies_and_seeds_differ() -> None:
    logits = torch.zeros(30, VOCABULARY)
    replies = {
        tuple(reply(Sampler(SamplingOptions(temperature=1, seed=seed), VOCABULARY, choice=choice), logits, first))
        for seed in (1, 2, 1 << 40)
        for choice in (0, 1)
        for first in (0, 1000)
    }
    assert len(replies) == 12


def test_a_choice_does_not_depend_on_what_was_sampled_before_or_beside() -> None:
    options = SamplingOptions(temperature=0.9, top_p=0.95, seed=77)
    logits = rows(12)
    expected = reply(Sampler(options, VOCABULARY), logits)
    backwards = Sampler(options, VOCABULARY)
    assert [backwards.sample(logits[i], i).token_id for i in reversed(range(12))] == expected[::-1]
    strided = torch.randn(12, 2 * VOCABULARY)
    strided[:, ::2] = logits
    assert [backwards.sample(strided[i, ::2], i).token_id for i in range(12)] == expected


def test_tokens_that_cannot_win_are_left_out_without_a_change() -> None:
    for scale in (0.1, 3.0, 10.0):
        for position, row in enumerate(rows(30, 5000, scale)):
            noise = gumbel(3, position, torch.arange(5000), 0)
            assert draw_token(row, 3, position, 0) == int((row + noise).argmax())


OPTIONS = [
    SamplingOptions(),
    SamplingOptions(presence_penalty=3, frequency_penalty=1.5, repetition_penalty=1.7),
    SamplingOptions(logit_bias={5: 4.0}),
    SamplingOptions(temperature=1.2, seed=4),
    SamplingOptions(
        temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, frequency_penalty=2, repetition_penalty=1.2, seed=5
    ),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_windows_with_drafts_give_the_reply_without_drafts(options: SamplingOptions) -> None:
    """Rows of a window are what the model computes behind its drafts; here each position has its row."""
    logits = rows(60) / 2  # flat enough for penalties to matter
    prompt = [1, 2, 3, 3]
    expected = reply(Sampler(options, VOCABULARY, prompt), logits, first=9)
    random = np.random.default_rng(0)
    sampler, ids = Sampler(options, VOCABULARY, prompt), list[int]()
    while len(ids) < 60:
        right = expected[len(ids) : len(ids) + int(random.integers(0, 5))][: 59 - len(ids)]
        drafts = [token if random.random() < 0.7 else int(random.integers(VOCABULARY)) for token in right]
        window = logits[len(ids) : len(ids) + len(drafts) + 1]
        draws = sampler.verify(window, 9 + len(ids), drafts)
        assert draws == sampler.verify(window, 9 + len(ids), drafts)
        taken = [draw.token_id for draw in draws]
        assert taken[:-1] == drafts[: len(draws) - 1]
        sampler.commit(taken)
        ids += taken
    assert ids == expected


def test_penalties_see_prompt_and_reply() -> None:
    logits = torch.tensor([3.0, 2.9, 0.0])
    repetition = Sampler(SamplingOptions(repetition_penalty=1.5), 3, prompt=[0])
    assert repetition.sample(logits, 0).token_id == 1
    presence = Sampler(SamplingOptions(presence_penalty=0.5), 3, prompt=[0])
    assert presence.sample(logits, 0).token_id == 0
    presence.commit([0])
    assert presence.sample(logits, 1).token_id == 1


def test_logprobs_come_from_the_logits_before_any_option() -> None:
    row = rows(1)[0]
    options = SamplingOptions(temperature=0.5, top_k=3, seed=1, logit_bias={0: 50.0}, logprobs=2)
    draw = Sampler(options, VOCABULARY).sample(row, 0)
    assert draw.token_id == 0
    assert draw.logprob == pytest.approx(float(torch.log_softmax(row.double(), dim=-1)[0]))
    assert [top.token_id for top in draw.top_logprobs] == torch.topk(row, 2).indices.tolist()
    assert Sampler(SamplingOptions(), VOCABULARY).sample(row, 0).logprob is None


def test_logits_that_are_not_finite_fail_and_ruled_out_tokens_do_not() -> None:
    sampler = Sampler(SamplingOptions(temperature=1, seed=2), 4)
    for bad in (float("nan"), float("inf")):
        for place in range(4):
            row = torch.zeros(4)
            row[place] = bad
            with pytest.raises(EngineError, match="position 8 are not finite"):
                sampler.sample(row, 8)
    masked = torch.full((4,), float("-inf"))
    with pytest.raises(EngineError, match="no token is allowed"):
        sampler.sample(masked, 0)
    masked[2] = -5.0
    assert sampler.sample(masked, 0).token_id == 2


def test_what_cannot_work_is_refused_at_the_start() -> None:
    with pytest.raises(RequestError, match="logit_bias names token id 300"):
        Sampler(SamplingOptions(logit_bias={300: 1}), VOCABULARY)
    with pytest.raises(ValueError, match="seeded"):
        Sampler(SamplingOptions(temperature=1), VOCABULARY)
    with pytest.raises(ValueError, match="2 drafts need 3 rows"):
        Sampler(SamplingOptions(), VOCABULARY).verify(rows(2), 0, [1, 2])
