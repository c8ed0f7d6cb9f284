"""Joining prompts on real engines: the shipped model on the CPU, and a made-up one over one stage and two."""

from dataclasses import replace

import pytest
import torch

from strata.bench.interleave import Interleave, InterleavePlan, interleave_modes, made_up_tokens
from strata.bench.join_bench import JoinBench
from strata.bench.join_made import MadeShape, made_engine
from strata.bench.join_model import JoinEngine, load_engine
from strata.bench.join_modes import JoinMode, parse_modes
from strata.bench.join_plan import Sizes
from strata.bench.joining import Client, Scenario
from strata.bench.synthetic_model import synthetic_config
from strata.errors import EngineError, SettingsError
from strata.models.device.layer_split import LayerSplit
from strata.models.device.synthetic import SyntheticForm
from strata.settings import EngineSettings

CPU = torch.device("cpu")
MODES = parse_modes("whole,layers")


@pytest.fixture(scope="module")
def pocket() -> JoinEngine:
    return load_engine(None, EngineSettings(threads=1, slots=6, chunk_rows=64, max_gap_ms=5.0))


def bench(loaded: JoinEngine, sizes: Sizes | None = None) -> JoinBench:
    return JoinBench(
        loaded.engine,
        loaded.served,
        loaded.settings,
        sizes or Sizes(0.003, stream_tokens=15),
        answer_rows=(40, 70, 5, 130, 9, 64),
    )


def test_modes_take_turns_and_give_every_client_the_same_tokens(pocket: JoinEngine) -> None:
    assert (pocket.device, pocket.served.slots, pocket.served.chunk_rows, pocket.served.is_piped) == (
        "cpu",
        6,
        64,
        False,
    )
    told: list[str] = []
    runs = bench(pocket).measure(("two_joiners", "read_alone"), MODES, 1, lambda stage, *_: told.append(stage))
    assert [each.mode for each in runs] == list(MODES)
    assert told[1:4] == [*(f"running two_joiners in {mode.name}" for mode in MODES), "running read_alone in whole"]
    answers = {
        tuple((name, tuple(seen.tokens)) for name, seen in joined.seen.items())
        for each in runs
        for joined in each.runs["two_joiners"]
    }
    assert len(answers) == 1
    for each in runs:
        assert [len(rounds) for rounds in each.runs.values()] == [1, 1]
        assert all(spread.lowest <= spread.median <= spread.highest for spread in each.spreads.values())
        assert each.spreads["first prompt to its first token"].lowest > 0


def test_six_answers_are_the_same_in_every_mode_and_others_of_another_seed(pocket: JoinEngine) -> None:
    made = bench(pocket)
    whole, layers = made.answers(MODES[0]), made.answers(MODES[1])
    assert whole == layers and len(set(whole)) == 6
    assert replace(made, seed=1).answers(MODES[0]) != whole
    unsteady = iter(range(100))
    made._prompt = lambda name, rows: made_up_tokens(name, rows, 1000, next(unsteady))  # type: ignore[method-assign]
    with pytest.raises(EngineError, match=r"whole: answers 1, .* are others the second time"):
        made.answers(MODES[0])


def test_scenarios_that_do_not_fit_are_refused(pocket: JoinEngine) -> None:
    with pytest.raises(SettingsError, match=r"needs a context of .* smaller --scale, or fewer --stream-tokens"):
        bench(pocket, Sizes(0.001, stream_tokens=70_000))._check_fitting([Scenario("x", (), 1, 1, 70_000)])


def test_an_interleave_tells_who_got_other_tokens(pocket: JoinEngine) -> None:
    plan = replace(InterleavePlan().with_piece(128), stream_tokens=20, stopped_tokens=6, reply_tokens=5)
    test = Interleave(pocket.engine, pocket.served, pocket.settings, plan)
    (layers,) = [mode for mode in interleave_modes(128) if mode.name == "layers"]
    test._alone = test._answers_alone()
    test._alone["D"][2] += 1
    (wrong,) = [check for check in test.run(layers) if not check.is_good]
    assert (wrong.what, wrong.found) == ("D gets its tokens", "parts at token 2, 5 of 5")


def test_stages_and_groups_of_a_made_up_model_give_the_same_tokens() -> None:
    scenario = Scenario("mixed", (Client("first", 70, 2),), streams=2, stream_rows=3, stream_tokens=3)
    settings, config = EngineSettings(threads=1, max_gap_ms=1.0), synthetic_config(2, is_tiny=True)
    found = []
    for cuts, groups in (((), 1), ((1,), 2)):
        split, devices = LayerSplit.of(2, cuts), (CPU,) * (1 + len(cuts))
        shape = MadeShape(config, SyntheticForm(), False, 50, split, devices, 3, 256, 64, groups)
        with made_engine(shape, settings, threads=1) as loaded:
            assert (loaded.served.groups, loaded.served.is_piped) == (groups, groups > 1)
            joined = bench(loaded).run(scenario, JoinMode(MODES[1].mode))
            found.append({name: seen.tokens for name, seen in joined.seen.items()})
    assert found[0] == found[1] and len(found[0]["first"]) == 2
