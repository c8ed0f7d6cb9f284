"""Conversations in groups give the tokens that they give together, and the bench holds one against the other."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from strata.bench import conversations
from strata.bench.conversations import fill_state
from strata.bench.grouped import GroupedConversations
from strata.bench.synthetic_model import make_model, synthetic_config
from strata.bench.tier_formula import TierBytes, TierRates, side_by_side_limit
from strata.bench.tiers import TierBench, TierPlan
from strata.models.device.description import DeviceModel
from strata.models.device.synthetic import SyntheticForm
from strata.native import library
from strata.native.pool import Pool
from tests.bench.test_tiers import CPU, LAYERS, PLAN

PLANNED = replace(PLAN, slots=(2, 3), caches=(50,), groups=(1, 2))


@pytest.fixture(autouse=True)
def few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATE_WINDOWS", "PROFILED_WINDOWS"):
        monkeypatch.setattr(conversations, name, 1)


@pytest.fixture(scope="module")
def whole() -> Iterator[DeviceModel]:
    yield make_model(synthetic_config(LAYERS, True), SyntheticForm(), CPU)


def test_two_groups_give_the_tokens_of_one(whole: DeviceModel) -> None:
    plan = PLAN.conversations((2,), 2)
    found = []
    for groups in (1, 2):
        run = GroupedConversations.open(whole, plan, groups)
        fill_state(run.groups[0].stage, plan.seed)
        assert run.decode(2, 2) > 0
        found.append(run.tokens(2))
    assert found[0] == found[1]
    assert len(set(found[0])) == 2


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_the_bench_measures_the_numbers_that_groups_can_share(monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.bench.synthetic_model import expert_layers_of
    from strata.bench.tier_memory import TierMemory

    config, form = synthetic_config(LAYERS, True), SyntheticForm()
    memory = TierMemory.take(*expert_layers_of(config, form), CPU, 1)
    model = make_model(config, form, CPU, take_experts=memory.put)
    rates = TierRates(1, 1, 1, 1, 1, 2, 1)
    with Pool(2, keeps_cores=False) as pool:
        speeds = TierBench(model, memory, pool, rates, PLANNED).measure()
    assert [(speed.groups, speed.slots) for speed in speeds] == [(1, 2), (1, 3), (2, 2)]
    alone, _, grouped = speeds
    assert alone.side_by_side_ms is None and grouped.side_by_side_ms is not None
    assert grouped.needed.dense > alone.needed.dense, "two windows read the dense part twice"
    assert grouped.counts.requests > 0


def test_the_limit_of_groups_is_the_slower_sides() -> None:
    rates = TierRates(1000, 50, 100, 100, 120, 120, 50)
    assert side_by_side_limit(3.0, TierBytes(0, 0, 120e6), rates) == 3.0
    assert side_by_side_limit(0.5, TierBytes(0, 0, 120e6), rates) == 1.0


def test_a_plan_without_several_groups_measures_no_card_alone() -> None:
    assert TierPlan((50,), (1,), 8, 1, 1, False).groups == (1,)
