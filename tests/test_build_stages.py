"""A whole engine on stages: cut anywhere, on any devices, it gives the tokens of one stage. Here all are on the CPU."""

import gc
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strata import build
from strata.api import Engine
from strata.build import choose_device, load_model
from strata.cli.app import run
from strata.cli.synth import synth
from strata.engine import part_loading
from strata.engine.part_loading import Card
from strata.engine.stage_model import StageModel
from strata.errors import ModelError, SettingsError
from strata.hardware import GpuFacts
from strata.kernels import roads
from strata.native import library
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.weights.opening import open_model

pytestmark = pytest.mark.usefixtures("library_products")
GIB = 1 << 30
needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
GOOD, SMALL = GpuFacts("a made-up card", 80 * GIB, 79 * GIB, (9, 0)), GpuFacts("small", 8 * GIB, 6 * GIB, (8, 6))
OPTIONS = SamplingOptions(max_tokens=6, ignore_eos=True)
PROMPTS = ([5] * 20, [7, 9, 11], [3, 4] * 9)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stages") / "sparse"
    synth("qwen3_moe", directory, fields=["vocab_size=8192", "num_hidden_layers=3"])
    return directory


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Without files in the user's folders, and without cards."""
    monkeypatch.setattr(build, "profiles_folder", lambda: tmp_path / "profiles")
    monkeypatch.setattr(build, "kernel_cache_folder", lambda _: tmp_path / "kernels")
    yield
    roads.force_reference(False)
    roads.use_dependent_launches(True)


@cache
def wanted_texts(model: Path) -> list[str]:
    """Of the model on the CPU without stages."""
    return texts(model, device="cpu")[0]


def texts(model: Path, **values: Any) -> tuple[list[str], tuple[str, ...]]:
    """Of three requests at once, and what is told of the model."""
    usual = {"slots": 2, "context": 512, "threads": 1}
    with Engine(model, **usual | values) as engine:
        replies = [engine.generate(prompt, OPTIONS) for prompt in PROMPTS]
        return [reply.text() for reply in replies], engine.notices


@pytest.mark.parametrize(
    "values",
    [
        {"devices": "cpu"},
        {"devices": "cpu,cpu", "layer_split": "1"},
        {"devices": "cpu,cpu", "layer_split": "2", "groups": 1},
        {"devices": "cpu,cpu,cpu", "gpu_reads": "windows"},
        pytest.param({"devices": "cpu,cpu", "cache_gib": 0.0}, marks=needs_library),
        pytest.param({"devices": "cpu,cpu", "cache_gib": 1e-4, "resident": True}, marks=needs_library),
    ],
)
def test_tokens_are_those_of_one_device(sparse: Path, values: dict[str, str]) -> None:
    assert texts(sparse, **values) == (wanted_texts(sparse), ())


def test_the_shipped_model_on_two_stages_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for devices in ("cpu", "cpu,cpu"):
        arguments = ["--devices", devices, *(["--layer-split", "1"] if "," in devices else [])]
        assert run(["generate", "Hello", "--max-tokens", "2", "--context", "64", "--slots", "1", *arguments]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != ""
    assert run(["generate", "Hello", "--devices", "cpu,cpu", "--layer-split", "9"]) == 2
    assert capsys.readouterr().err == (
        "error: setting layer_split: 9 cuts in front of layer 9, of a model with layers 0 to 5: 1 to 5 works\n"
    )


def test_what_is_loaded_is_as_the_split_says(sparse: Path) -> None:
    seen: list[str] = []
    settings = EngineSettings(devices="cpu,cpu", layer_split="2", slots=2, context=512, groups=2)
    loaded = load_model(sparse, settings, lambda stage, *_: seen.append(stage))
    model = loaded.engine.model
    assert isinstance(model, StageModel)
    assert (loaded.slots, loaded.groups, loaded.is_piped, len(model.groups)) == (2, 2, True, 2)
    assert [len(stage.model.layers) for stage in model.stage.stages] == [2, 1]
    assert [stage.model.is_first for stage in model.stage.stages] == [True, False]
    first, second = (group.stage.stages for group in model.groups)
    assert [each.state for each in first] == [each.state for each in second]
    assert loaded.slot_costs.startswith("2 slots; one of 512 tokens takes stage 1 ")
    assert set(seen) == {"loading the model"}


def test_on_the_cpu_without_stages_there_are_no_groups(sparse: Path) -> None:
    loaded = load_model(sparse, EngineSettings(device="cpu", slots=2, groups=2))
    assert (loaded.groups, loaded.is_piped, loaded.slot_costs) == (1, False, "")
    assert loaded.notices == ("groups changes nothing: the model runs on the CPU",)


@needs_library
def test_memory_of_all_stages_is_free_when_an_engine_is_closed(sparse: Path) -> None:
    engine = Engine(sparse, devices="cpu,cpu", layer_split="1", slots=1, context=512, cache_gib=0.0)
    engine.generate([5] * 9, OPTIONS).text()
    assert engine._loaded is not None and isinstance(engine._loaded.engine.model, StageModel)
    tiers = [stage.model.tiers for stage in engine._loaded.engine.model.stage.stages]
    alive = [weakref.ref(each._places) for each in tiers if each is not None]
    assert len(alive) == 2
    del tiers
    engine.close()
    gc.collect()
    assert [each() for each in alive] == [None, None]


@needs_library
def test_a_profile_has_the_experts_of_all_stages(sparse: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heat: list[Any] = []
    load = build.load_stages

    def noting(*parts: Any, **named: Any) -> Any:
        heat.append(named["wishes"].heat)
        return load(*parts, **named)

    monkeypatch.setattr(build, "load_stages", noting)
    for _ in range(2):
        texts(sparse, devices="cpu,cpu", layer_split="1", cache_gib=0.0, expert_profile=str(tmp_path / "profile"))
    assert heat[0] is None and heat[1].shape[0] == 3
    assert np.all(heat[1].sum(axis=1) > 0)


def test_pretended_cards_are_stages_too(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def card(index: int) -> Card:
        taken.append(index)
        return Card(torch.device("cpu"), lambda: 5 * GIB, lambda: None)

    monkeypatch.setattr(Card, "cuda", card)
    monkeypatch.setattr(build, "use_cache", lambda _: None)
    compiled: list[int] = []
    monkeypatch.setattr(build, "compile_ahead", lambda request, *_: compiled.append(request.card))
    monkeypatch.setattr(build, "read_gpus", lambda: (GOOD, SMALL, GOOD))
    chosen = choose_device(open_model(sparse, "none"), EngineSettings(layer_split="auto"))
    assert [each.index for each in chosen.cards] == [0, 1, 2]
    with pytest.raises(SettingsError, match="3 stages, and there are 2 cards"):
        monkeypatch.setattr(build, "read_gpus", lambda: (GOOD, SMALL))
        choose_device(open_model(sparse, "none"), EngineSettings(layer_split="1,2"))
    assert texts(sparse, devices="cuda:1,cuda:0", layer_split="1")[0] == wanted_texts(sparse)
    assert taken == [0, 1]  # the first stage's is the current one
    assert compiled == [1, 0]  # one of each kind is compiled for
    with pytest.raises(ModelError, match=r"stage 1 of 2 \(layer 0\): this model does not fit on cuda:1 \(small\)"):
        load_model(sparse, EngineSettings(devices="cuda:1,cuda:0", layer_split="1", vram_gib=1.0))


def test_memory_that_runs_out_is_given_up_on_the_stage_that_lacks_it(
    sparse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    stage = part_loading.Stage

    def full(model: Any, sizes: Any, beside: Any) -> Any:
        made.append((len(model.layers), sizes.slots))
        if len(model.layers) == 2 and sizes.slots > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return stage(model, sizes, beside=beside)

    monkeypatch.setattr(part_loading, "Stage", full)
    settings = EngineSettings(devices="cpu,cpu", layer_split="1", context=512, groups=1)
    loaded = load_model(sparse, settings)
    assert (loaded.slots, made) == (2, [(1, 4), (2, 4), (1, 2), (2, 2)])
    assert loaded.notices == (
        "the cards had room for less than planned: 2 conversations of 512 tokens instead of 4 conversations of 512 "
        "tokens",
    )
