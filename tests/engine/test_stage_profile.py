"""A profiled stage does what an unprofiled one does, and times every step of every variant by itself."""

import atexit
from collections.abc import Callable
from functools import partial

import pytest
import torch

from strata.engine import step_times
from strata.engine.graphs import wanted_graphs
from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from strata.engine.stage_profile import StageProfile, Times, profiled_run
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.launches import Launch
from strata.models.device.synthetic import SyntheticWeights
from strata.models.families import family_of
from strata.weights.presets import STYLES, preset_config

CPU = torch.device("cpu")
PART = RowsPart(0, 0, (5, 7))


@pytest.fixture(scope="module")
def model() -> DeviceModel:
    config = preset_config("qwen3_moe", "tiny")
    found = family_of(config)
    parsed = found.parse_config(config)
    return describe(found.build(parsed, SyntheticWeights(found.expected_tensors(parsed), STYLES[found.name], CPU)), CPU)


def test_every_step_of_every_variant_is_timed_and_computed(model: DeviceModel) -> None:
    plain, profiled = (Stage(model, StageSizes(1, 512), (2,)) for _ in range(2))
    profile = StageProfile(profiled)
    for stage, run in ((plain, plain.run), (profiled, profile.run)):
        stage.set_rows(2, [PART])
        run(Variant.FORWARD, 2)
        stage.set_accepted([2])
        run(Variant.COMMIT, 2)
    assert torch.equal(plain.logits(2), profiled.logits(2))
    times = profile.times[Variant.FORWARD, 2]
    assert len(times.steps()) == len({(each.kind, each.step) for each in profiled.launches(Variant.FORWARD, 2)})
    assert times.layers == {"attention": 4}
    lines = profile.as_lines()
    assert lines[0].startswith("forward, 2 rows: 1 windows outside graphs")
    assert any("experts: route" in line for line in lines)


def test_the_table_is_printed_when_the_process_ends(
    model: DeviceModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", lambda function, *arguments: ends.append(partial(function, *arguments)))
    stage = Stage(model, StageSizes(1, 512), (2,))
    run = profiled_run(stage)
    stage.set_rows(2, [PART])
    run(Variant.READ, 2)
    (end,) = ends
    assert capsys.readouterr().err == ""
    end()
    assert capsys.readouterr().err.startswith("read, 2 rows: 1 windows outside graphs")


class SlowAtFirst:
    """Launches that compile: the first run of each takes a second of a clock that only they move, later ones 10 us."""

    def __init__(self) -> None:
        self.now = 0.0
        self._warm: set[int] = set()

    def perf_counter(self) -> float:
        return self.now

    def launch(self, like: Launch) -> Launch:
        def run() -> None:
            self.now += 1e-5 if id(like) in self._warm else 1.0
            self._warm.add(id(like))
            like.run()

        return Launch(like.layer, like.kind, like.step, run)


def test_compiling_is_no_time_of_a_step(model: DeviceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Times] = []
    monkeypatch.setattr(atexit, "register", lambda _, times: registered.append(times))
    stage, clock = Stage(model, StageSizes(1, 512), (1, 2)), SlowAtFirst()
    launches = stage.launches
    monkeypatch.setattr(stage, "launches", lambda *asked: [clock.launch(launch) for launch in launches(*asked)])
    monkeypatch.setattr(step_times, "time", clock)
    told: list[int] = []
    run = profiled_run(stage, lambda _, done, __: told.append(done))
    compiled = clock.now
    stage.set_rows(2, [PART])
    run(Variant.READ, 2)
    run(Variant.FORWARD, 1)
    (times,) = registered
    assert compiled >= len(launches(Variant.WINDOW, 2))
    assert told == list(range(len(wanted_graphs(stage)) + 1))
    assert list(times) == [(Variant.READ, 2), (Variant.FORWARD, 1)]
    assert all(step.microseconds == pytest.approx(10) for found in times.values() for step in found.steps())
