"""Faults around experts in tiers: files that fail while they are loaded, a card that runs out while windows run."""

import errno
import gc
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from strata import build
from strata.cli.app import run
from strata.cli.synth import synth
from strata.engine import slot, slot_keeper
from strata.engine.device_needs import plan_for
from strata.engine.device_windows import windows_ahead
from strata.engine.engine import TokenEngine
from strata.engine.graphs import WindowGraphs
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_loading import Card, LoadedStage, ModelFiles, load_stage
from strata.engine.stage_model import StageModel
from strata.errors import DeviceLostError, WeightFileError
from strata.experts.cache import SwapRule
from strata.experts.host_memory import Pinning
from strata.experts.store import ExpertStore
from strata.experts.streams import PlainStreams
from strata.experts.swapping import Swapper
from strata.hardware import GpuFacts
from strata.models.device import weights
from strata.models.families import family_of
from strata.native import library
from strata.native.pool import Pool
from strata.settings import EngineSettings
from strata.weights.opening import open_model
from tests.engine.served import SETTINGS, Served, ask
from tests.engine.test_tier_loading import BUDGETS, CPU, GIB, loaded, planned
from tests.engine.tiered_stages import Tiering, tiered
from tests.experts.busy_pool import stick
from tests.weights.gguf_models import gguf

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
EAGER = SwapRule(every=1, most_swaps=8, margin=0.1, decay=0.7, again=1.0)
TOLD = "the card ran out of memory while the engine ran: other programs may have taken it; ask again"
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


class Failing:
    """Something that refuses its next calls, as often as it is told."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.refusals = 0
        self.refused = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            self.refused += 1
            raise FULL
        return self.call(*arguments, **named)


def served(found: LoadedStage, *, is_ahead: bool) -> Served:
    ahead = windows_ahead(found.model) if is_ahead else ()
    return Served(TokenEngine(found.model, SETTINGS, ahead=ahead), slots=2)


@pytest.mark.parametrize("is_ahead", [True, False])
@pytest.mark.parametrize("when", [0, 1, 4])
def test_a_card_that_runs_out_in_a_launch_ends_a_request_and_the_next_one_works(is_ahead: bool, when: int) -> None:
    found = loaded("qwen3_moe", planned("qwen3_moe", 0.4))
    assert found.tiers is not None
    engine, request = served(found, is_ahead=is_ahead), ask([5, 7, 9], 12)
    wanted = engine.ask(request)
    found.model.run = launch = Failing(found.model.run)
    engine.submit(1, request)
    while len(engine.replies[1]) < 1 + when:
        engine.turn()
    launch.refusals = 1
    engine.finish()
    assert launch.refused == 1
    assert engine.ends[1].error == TOLD
    assert (found.tiers.tiers.windows[0].waiting_for() or "").startswith("0 windows are in flight")
    assert engine.ask(request) == wanted


@pytest.mark.parametrize("is_ahead", [True, False])
@pytest.mark.parametrize("what", ["a point", "a mark"])
def test_a_card_that_runs_out_in_a_copy_of_a_state_ends_a_request_and_its_slot_is_free_again(
    is_ahead: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt's points lie in memory that is locked for the card, marks of a reply in seats that are there."""
    monkeypatch.setattr(slot, "MARK_ROWS", 4)
    found = loaded("qwen3_moe", planned("qwen3_moe", 0.4))
    engine, request = served(found, is_ahead=is_ahead), ask(range(1, 12), 20)
    wanted = engine.ask(request)
    place: Any = found.model.slots.keepers[0] if what == "a point" else slot_keeper
    name = "room_for" if what == "a point" else "copy_all"
    refusing = Failing(getattr(place, name))
    monkeypatch.setattr(place, name, refusing)
    for turn in range(3):  # one slot more than there are
        engine.submit(turn, request)
        if what == "a mark":
            while len(engine.replies[turn]) < 2:
                engine.turn()
        refusing.refusals = 1
        engine.finish()
        assert refusing.refused == turn + 1
        assert engine.ends[turn].error == TOLD
        assert engine.replies[turn] == wanted[: len(engine.replies[turn])]
    assert engine.ask(request) == wanted


@pytest.mark.parametrize("is_ahead", [True, False])
@pytest.mark.parametrize("step", ["copy_beside", "copy_behind", "hold_side"])
def test_a_card_that_runs_out_in_a_swap_ends_a_request_and_the_swap_is_taken_up_again(
    is_ahead: bool, step: str
) -> None:
    found = loaded("qwen3_moe", planned("qwen3_moe", 0.4))
    assert found.tiers is not None
    store, tiers = found.tiers.store, found.tiers.tiers
    engine, request = served(found, is_ahead=is_ahead), ask([5, 7, 9], 30)
    wanted = engine.ask(request)
    streams = PlainStreams()
    refusing = Failing(getattr(streams, step))
    setattr(streams, step, refusing)
    swapper = Swapper(store, tiers, tiers.asked, streams, EAGER)
    tiers.follow(swapper.before_launch)
    refusing.refusals = 1
    engine.submit(1, request)
    engine.finish()
    assert refusing.refused == 1
    assert engine.ends[1].error == TOLD
    assert (tiers.windows[0].waiting_for() or "").startswith("0 windows are in flight")
    before = swapper.swaps
    assert engine.ask(request) == wanted
    assert swapper.swaps > before


def test_a_launch_that_fails_ends_those_it_was_for_behind_what_the_window_before_gave() -> None:
    found = loaded("qwen3_moe", planned("qwen3_moe", 0.4))
    engine = served(found, is_ahead=True)
    requests = {1: ask([5, 7, 9], 20), 2: ask([11, 3], 20)}
    wanted = {number: engine.ask(request) for number, request in requests.items()}
    found.model.run = launch = Failing(found.model.run)
    for number, request in requests.items():
        engine.submit(number, request)
    while not all(len(engine.replies[number]) >= 3 for number in requests):
        engine.turn()
    launch.refusals = 1
    engine.finish()
    for number in requests:
        assert engine.ends[number].error == TOLD
        assert engine.replies[number] == wanted[number][: len(engine.replies[number])]
        assert engine.ask(requests[number]) == wanted[number]


class Pins:
    """A card's locked memory, counted."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.most = 0

    def pinning(self) -> Pinning:
        return Pinning(self.pin, self.held.remove)

    def pin(self, address: int, _: int) -> None:
        self.held.add(address)
        self.most = max(self.most, len(self.held))


def made(folder: Path) -> Path:
    """The one weight file of a directory that a test may break."""
    synth("qwen3_moe", folder, fields=["vocab_size=8192"])
    (file,) = folder.glob("*.safetensors")
    return file


def breaking_in_the_middle(patch: pytest.MonkeyPatch, break_file: Callable[[], None]) -> None:
    """The file breaks once memory was taken and the first layer's experts are there."""
    fill = weights.fill_layer

    def breaking(store: ExpertStore, layer: int, *others: Any) -> None:
        if layer == 1:
            break_file()
        fill(store, layer, *others)

    patch.setattr(weights, "fill_layer", breaking)


def refusal(path: Path, pins: Pins, *, is_exclusive: bool) -> str:
    """What a load says that is refused for its file."""
    source = open_model(path, "none")
    family = family_of(source.config)
    settings = EngineSettings(slots=1, context=64, resident=is_exclusive, gpu_reads="windows")
    routed = plan_for(source, settings, BUDGETS).request.routed_bytes
    plan = plan_for(source, replace(settings, cache_gib=0.4 * routed / GIB), BUDGETS)
    files = ModelFiles(family, family.parse_config(source.config), source, list(source.names()))
    with pytest.raises(WeightFileError) as refused:
        load_stage(files, replace(CPU, pinning=pins.pinning), plan)
    return str(refused.value)


@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize("fault", ["the disk fails", "the file is cut"])
def test_a_file_that_fails_while_experts_are_loaded_is_named_and_nothing_stays(
    fault: str, is_exclusive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made(tmp_path / "model")
    pins, threads = Pins(), threading.active_count()

    def refuse(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def break_file() -> None:
        if fault == "the disk fails":
            monkeypatch.setattr(os, "preadv", refuse)
        else:
            os.truncate(file, 4096)

    breaking_in_the_middle(monkeypatch, break_file)
    told = refusal(file.parent, pins, is_exclusive=is_exclusive)
    words = "cannot be read: input/output error" if fault == "the disk fails" else "ended while tensor"
    assert told.startswith(f"{file} {words}")
    gc.collect()
    assert pins.most > 0
    assert not pins.held
    assert threading.active_count() == threads


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_a_gguf_file_that_is_cut_while_experts_are_loaded_is_named_and_nothing_stays(
    is_exclusive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(shutil.copy(gguf("qwen3_moe", "Q8_0"), tmp_path / "cut.gguf"))
    pins = Pins()
    breaking_in_the_middle(monkeypatch, lambda: os.truncate(file, 8192))
    told = refusal(file, pins, is_exclusive=is_exclusive)
    assert told.startswith(f"{file}: the experts of model.layers.1.mlp cannot be read: the file ended early")
    gc.collect()
    assert pins.most > 0
    assert not pins.held


def test_the_command_ends_with_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "read_gpus", lambda: (GpuFacts("a made-up card", 8 * GIB, 8 * GIB, (9, 0)),))
    monkeypatch.setattr(Card, "cuda", lambda _: CPU)
    monkeypatch.setattr(build, "use_cache", lambda _: None)
    monkeypatch.setattr(build, "force_reference", lambda _: None)  # of the whole process: it is so on the CPU
    file = made(tmp_path / "model")
    breaking_in_the_middle(monkeypatch, lambda: os.truncate(file, 4096))
    command = ["generate", "hi", "--model", str(file.parent), "--device", "cuda", "--gpu-path", "torch"]
    assert run([*command, "--cache-gib", "0", "--expert-profile", str(tmp_path / "profile")]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("error: ")]
    assert line.startswith(f"error: {file} ended while tensor")
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("is_ahead", [True, False])
def test_threads_that_are_stuck_end_everything_and_the_layer_and_what_it_waited_for_are_told(is_ahead: bool) -> None:
    with Pool(2) as pool, tiered("qwen3_moe", "code8", Tiering(0.4), pool, limit_s=0.3) as (built, description):
        stage = Stage(description, StageSizes(2, 128))
        model = StageModel(stage, WindowGraphs(stage).run, built.config, built.experts_per_row)
        engine = Served(TokenEngine(model, SETTINGS, ahead=windows_ahead(model) if is_ahead else ()), slots=2)
        engine.submit(1, ask([5, 7, 9], 100))
        while len(engine.replies[1]) < 3:
            engine.turn()
        stuck = stick(pool, 2.0)
        where, what = r"layer \d \(model\.layers\.\d\.mlp\.\)", r"request \d+ \(1 rows, \d places of experts\)"
        for _ in range(2):  # and nobody goes on
            with pytest.raises(DeviceLostError, match=rf"no answer in {where}: {what} .* 0\.3 s"):
                engine.finish()
        assert stuck.is_alive(), "nobody waited for the threads"
        stuck.join()
