"""The real scheduler on the machine of the published table gives that table, before it says anything of `layers`."""

from dataclasses import replace

import pytest

from strata.bench.join_measures import MEASURES, target_of
from strata.bench.simulation import LAYERS, PUBLISHED, TWO_5090, WHOLE, Simulation, errors_of, simulated_rows
from strata.settings import EngineSettings

SIMULATION = Simulation(TWO_5090, EngineSettings())
MOST_ERROR = 0.15


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, float]]:
    return {mode.name: simulated_rows(SIMULATION, mode)[0] for mode in (*PUBLISHED, LAYERS)}


@pytest.mark.parametrize("mode", PUBLISHED, ids=lambda mode: mode.name)
def test_every_published_row_is_reproduced(rows: dict[str, dict[str, float]], mode: object) -> None:
    errors = errors_of(rows[mode.name], PUBLISHED[mode])  # type: ignore[attr-defined, index]
    assert len(errors) == 9
    assert {title: error for title, error in errors.items() if abs(error) > MOST_ERROR} == {}


def test_layer_steps_pause_nobody_and_answer_a_question_at_once(rows: dict[str, dict[str, float]]) -> None:
    whole, layers = rows[WHOLE.name], rows[LAYERS.name]
    missed = [
        measure.title
        for measure in MEASURES
        if (target := target_of(measure, LAYERS)) is not None
        and not target.is_met(layers[measure.title], whole[measure.title])
    ]
    assert missed == ["first prompt to its first token", "second prompt to its first token"]
    assert layers["first prompt to its first token"] < 1.2 * whole["first prompt to its first token"]


def test_a_longer_gap_gives_the_joining_prompts_more_of_the_machine() -> None:
    patient = Simulation(TWO_5090, EngineSettings(max_gap_ms=150.0))
    title = "first prompt to its first token"
    usual, longer = (simulated_rows(each, LAYERS)[0][title] for each in (SIMULATION, patient))
    assert longer < 0.95 * usual


def test_another_machine_is_another_table() -> None:
    slower = Simulation(replace(TWO_5090, row_seconds=2 * TWO_5090.row_seconds), EngineSettings())
    found = simulated_rows(slower, WHOLE)[0]["the long prompt read alone"]
    assert found > 1.8 * PUBLISHED[WHOLE]["the long prompt read alone"]
