"""Hours of random agents: nobody starves, no slot is lost; and what would be wrong is counted."""

from dataclasses import replace

import pytest

from strata.bench import agents
from strata.bench.agents import Findings, live
from strata.bench.simulation import TWO_5090, Simulation
from strata.settings import EngineSettings

SIMULATION = Simulation(TWO_5090, EngineSettings())


def test_an_hour_of_agents_goes_well() -> None:
    told: list[tuple[int, int]] = []
    found = live(SIMULATION, 1, seed=5, on_progress=lambda stage, done, total: told.append((done, total)))
    assert found.is_good
    assert found.requests == found.ended > 100
    assert 0 < found.cancelled < found.requests / 4
    assert found.give_ways > 5 and found.cached_rows > found.prompt_rows > 500_000
    assert 0.05 < found.longest_gap <= found.bound == pytest.approx(0.11)
    assert told[0] == (0, 1) and told[-1] == (1, 1)


def test_one_stage_whose_experts_come_over_a_link_keeps_its_bound() -> None:
    machine = replace(TWO_5090, name="one", stages=1, groups=1, link_seconds=1.2, row_seconds=9e-5)
    found = live(Simulation(machine, EngineSettings()), 0.4, seed=6)
    assert found.is_good and found.requests == found.ended > 30


def test_what_must_not_be_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "STARVED_SECONDS", 2.0)
    monkeypatch.setattr(agents, "ESTIMATES", 0.5)
    monkeypatch.setattr(agents, "reply_token", lambda request, place: -1)
    found = live(SIMULATION, 0.4, seed=5)
    assert found.starved > 0 and found.gaps_over > 0 and found.wrong_replies > found.ended
    assert not found.is_good


@pytest.mark.parametrize("field", ["starved", "lost_slots", "gaps_over", "wrong_replies"])
def test_any_of_the_four_is_bad(field: str) -> None:
    assert Findings().is_good and not Findings(**{field: 1}).is_good
