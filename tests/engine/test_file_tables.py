"""A stage whose n-gram tables stay in their files answers as with tables in memory; files that fail end what asked."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from strata import build
from strata.cli.app import run
from strata.cli.convert import convert_model
from strata.cli.synth import synth
from strata.engine import compile_share
from strata.engine.compile_share import CompileRequest, skeleton_of
from strata.engine.device_needs import plan_for
from strata.engine.flights import forget, in_flight, launching
from strata.engine.graphs import WindowGraphs
from strata.engine.memory_plan import Place
from strata.engine.request import TokenRequest
from strata.engine.stage import RowsPart, Stage, StageSizes, Variant
from strata.engine.stage_loading import Card, ModelFiles, load_stage
from strata.engine.stage_profile import profiled_run
from strata.engine.tier_loading import TierWishes
from strata.errors import DeviceLostError
from strata.hardware import GpuFacts
from strata.models.base import Segment
from strata.models.families import family_of
from strata.models.needs import Part
from strata.native import library
from strata.settings import EngineSettings
from strata.types import FinishReason
from strata.weights.opening import open_model
from tests.engine.served import Served, ask
from tests.engine.stages import stage_engine
from tests.engine.tabled_stages import in_memory, logits_of, published, tabled
from tests.engine.test_tier_loading import BUDGETS, CPU
from tests.experts.busy_pool import stick
from tests.random_text import token_ids_of

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
both_ways = pytest.mark.parametrize("is_ahead", [True, False])
both_waits = pytest.mark.parametrize("waits_in_stream", [False, True])


def requests() -> list[TokenRequest]:
    return [ask(token_ids_of(34, 1), 5), ask(token_ids_of(3, 2), 6, temperature=0.9, seed=3)]


@both_waits
def test_logits_have_the_bits_of_tables_in_memory(waits_in_stream: bool) -> None:
    with tabled(published(), waits_in_stream=waits_in_stream) as found:
        assert torch.equal(logits_of(found), logits_of(in_memory(published())))
        assert len(found.tables._asked[0]) == 2
        counts = found.tables.counts()
        heads = found.tables.table(0).mailbox.out.shape[1]
        assert counts.rows == 2 * heads * (34 + 3 + 4 * 3)
        assert found.tables.windows[0].waiting_for() is None


@cache
def wanted_replies() -> dict[int, list[int]]:
    """Of tables in memory."""
    served = in_memory(published()).served(is_ahead=True)
    for number, request in enumerate(requests()):
        served.submit(number, request)
    served.finish()
    return served.replies


@both_ways
def test_replies_are_those_of_tables_in_memory(is_ahead: bool) -> None:
    with tabled(published()) as found:
        served = found.served(is_ahead=is_ahead)
        for number, request in enumerate(requests()):
            served.submit(number, request)
        served.finish()
        assert served.replies == wanted_replies()
        assert len(found.tables.windows[0]) == 0


@pytest.mark.parametrize(("rows", "waits_in_stream"), [(530, False), (70, True)])
def test_prompts_in_chunks_have_the_bits_of_tables_in_memory(rows: int, waits_in_stream: bool) -> None:
    """Also of more rows than are asked for at once; a window of another slot runs between two layers."""
    text = torch.arange(rows) * 7 % 96
    with tabled(published(), waits_in_stream=waits_in_stream) as found:
        logits = []
        for each in (in_memory(published()), found):
            model = each.model(chunk_rows=576)
            reader, other = model.new_state(), model.new_state()
            reading = model.begin_read(Segment(reader, text))
            while not reading.advance():
                window = model.window([Segment(other, torch.tensor([3]))])
                model.commit(window, [1])
                logits.append(window.output.logits)
            logits.append(reading.finish().logits)
        half = len(logits) // 2
        assert torch.equal(torch.cat(logits[:half]), torch.cat(logits[half:]))
        assert len(found.tables.windows[0]) == 0


def test_a_file_that_fails_ends_a_prompt_in_chunks_and_the_next_one_is_read(tmp_path: Path) -> None:
    with of_its_own(tmp_path) as path, tabled(path) as found:
        (file,) = path.glob("*.safetensors")
        model = found.model(chunk_rows=64)
        served = Served(stage_engine(model, is_ahead=True), 2)
        times = file.stat()
        touch(file)
        served.submit(1, requests()[0])
        served.finish()
        assert f"{file.name} has changed since" in (served.ends[1].error or "")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert len(served.ask(requests()[0])) == 5
        assert len(found.tables.windows[0]) == 0


@contextmanager
def of_its_own(folder: Path) -> Iterator[Path]:
    """A copy of the model that a test may break."""
    yield Path(shutil.copytree(published(), folder / "model"))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def touch(file: Path) -> None:
    os.utime(file, ns=(0, 0))


@pytest.mark.parametrize(("is_ahead", "break_file"), [(True, cut), (False, touch)])
def test_a_file_that_fails_ends_its_windows_requests_and_the_next_ones_go_on(
    is_ahead: bool, break_file: Any, tmp_path: Path
) -> None:
    with of_its_own(tmp_path) as path, tabled(path) as found:
        (file,) = path.glob("*.safetensors")
        served = found.served(is_ahead=is_ahead)
        for number, request in enumerate(requests()):
            served.submit(number, request)
        while min(len(reply) for reply in served.replies.values()) < 2:
            served.turn()
        times, data = file.stat(), file.read_bytes()
        break_file(file)
        while not {0, 1} <= served.ends.keys():
            served.turn()
        for number in (0, 1):
            error = served.ends[number].error or ""
            assert served.ends[number].reason is FinishReason.ERROR
            assert "reading n-gram tables failed in model.layers." in error
            assert f"{file.name} has changed since" in error or f"{file.name} ends before row" in error
        served.submit(2, requests()[1])  # a prompt that cannot be read
        served.finish()
        assert file.name in (served.ends[2].error or "")
        file.write_bytes(data)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert served.ask(requests()[1]) == wanted_replies()[1]
        assert len(found.tables.windows[0]) == 0


@pytest.mark.parametrize(("is_ahead", "waits_in_stream"), [(True, False), (False, True)])
def test_readers_that_stop_answering_end_the_step_in_time(is_ahead: bool, waits_in_stream: bool) -> None:
    with tabled(published(), limit_s=0.2, waits_in_stream=waits_in_stream) as found:
        served = found.served(is_ahead=is_ahead)
        served.submit(0, requests()[0])
        while len(served.replies[0]) < 2:
            served.turn()
        stuck = stick(found.tables.readers, 1.0)
        for _ in range(2):  # and nobody goes on
            with pytest.raises(
                DeviceLostError, match=r"gave no answer in model\.layers\.\d.*table rows.*started again"
            ):
                served.finish()
        stuck.join()


@both_waits
def test_a_stop_lets_windows_run_to_their_ends_without_anybody(waits_in_stream: bool) -> None:
    with tabled(published(), waits_in_stream=waits_in_stream) as found:
        stage = Stage(found.description, StageSizes(2, 64), (4,))
        stage.set_rows(4, [RowsPart(0, 0, token_ids_of(4))])
        with pytest.raises(DeviceLostError, match="were stopped"), in_flight(stage):
            for launch in stage.launches(Variant.FORWARD, 4):
                launch.run()
                if launch.step == "n-grams: ask":
                    found.tables.stop()
            stage.forward(4)


@both_waits
def test_a_window_that_is_cut_off_behind_its_request_harms_no_other(waits_in_stream: bool) -> None:
    with tabled(published(), waits_in_stream=waits_in_stream) as found:
        stage = Stage(found.description, StageSizes(2, 64), (4,))
        stage.set_rows(4, [RowsPart(0, 0, token_ids_of(4))])
        wanted = []
        for _ in range(3):
            with in_flight(stage):
                stage.forward(4)
            wanted.append(stage.logits(4).clone())
            with pytest.raises(KeyboardInterrupt), in_flight(stage):
                for launch in stage.launches(Variant.FORWARD, 4):
                    launch.run()
                    if launch.step == "n-grams: ask":
                        raise KeyboardInterrupt
            assert len(found.tables.windows[0]) == 0
        assert torch.equal(wanted[0], wanted[1])
        assert torch.equal(wanted[0], wanted[2])


@pytest.mark.parametrize("prepare", [lambda stage: WindowGraphs(stage), profiled_run], ids=["graphs", "profile"])
def test_preparing_windows_asks_nobody(prepare: Any) -> None:
    with tabled(published()) as found:
        prepare(Stage(found.description, StageSizes(2, 64), (1,)))
        assert len(found.tables.windows[0]) == 0
        assert found.tables.counts().requests == 0


def test_rows_are_asked_for_in_front_of_the_first_layer() -> None:
    with tabled(published()) as found:
        stage = Stage(found.description, StageSizes(2, 64), (4,))
        steps = [(launch.step, launch.layer) for launch in stage.launches(Variant.FORWARD, 4)]
        assert [step for step, _ in steps[:4]] == ["embed", "n-grams: ask", "n-grams: ask", "n-grams: add, norm"]
        assert ("n-grams: collect", 2) in steps
        assert not any(step == "n-grams: gather" for step, _ in steps)


def loaded_logits(path: Path, ngram_table: str, cache: float | None = None) -> tuple[torch.Tensor, Any]:
    """Of a model that is loaded as its plan says."""
    source = open_model(path, "code8" if path.is_dir() else "none")
    family = family_of(source.config)
    settings = EngineSettings(slots=2, context=256, ngram_table=ngram_table, gpu_reads="windows")
    if cache is not None:
        settings = replace(settings, cache_gib=cache * plan_for(source, settings, BUDGETS).request.routed_bytes / 2**30)
    plan = plan_for(source, settings, BUDGETS)
    files = ModelFiles(family, family.parse_config(source.config), source, list(source.names()))
    found = load_stage(files, CPU, plan, wishes=TierWishes(threads=1))
    model = found.model
    return model.read([Segment(model.new_state(), torch.arange(20) % 96)]).logits, found


def packed_table(folder: Path) -> Path:
    """A GGUF file whose table's rows are whole blocks, as the published model's are."""
    fields = ["hidden_size=64", "ple_embed_dim=128", "linear_num_value_heads=6", "vocab_size=512"]
    synth("qwen4_exp", folder / "wide", fields=fields)
    convert_model(folder / "wide", folder / "wide.gguf", "IQ4_NL")
    source = open_model(folder / "wide.gguf", "none")
    assert {source.stored_code(name) for name in source.names() if "ngram_embedding.weight" in name} == {"IQ4_NL"}
    return folder / "wide.gguf"


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_model_is_loaded_as_the_setting_says(is_packed: bool, tmp_path: Path) -> None:
    path = packed_table(tmp_path) if is_packed else published()
    wanted, plain = loaded_logits(path, "auto")
    logits, found = loaded_logits(path, "file")
    assert plain.model.stage.model.tables is None and len(found.model.stage.model.asked) == 1
    assert torch.equal(logits, wanted)
    assert not any(part.name == Part.NGRAM.value for part in found.plan.parts)
    held = plain.plan.used(Place.CARD) - found.plan.used(Place.CARD)
    assert held == found.plan.request.weights[Part.NGRAM] > 0
    found.model.stage.model.tables.close()
    if is_packed:
        return
    in_tiers, tiered = loaded_logits(path, "file", cache=0.3)
    assert tiered.tiers is not None and len(tiered.model.stage.model.asked) == 2
    assert torch.equal(in_tiers, wanted)
    tiered.model.stage.model.tables.close()
    tiered.tiers.tiers.close()


def test_the_command_answers_the_same_wherever_the_table_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "read_gpus", lambda: (GpuFacts("a made-up card", 8 << 30, 8 << 30, (9, 0)),))
    monkeypatch.setattr(Card, "cuda", lambda _: CPU)
    monkeypatch.setattr(build, "use_cache", lambda _: None)
    monkeypatch.setattr(build, "force_reference", lambda _: None)  # of the whole process: it is so on the CPU
    synth("qwen4_exp", tmp_path / "model", fields=["vocab_size=8192", "num_hidden_layers=3"])
    command = ["generate", "hi", "--model", str(tmp_path / "model"), "--device", "cuda", "--gpu-path", "torch"]
    command += ["--context", "64", "--slots", "1", "--max-tokens", "3", "--gpu-reads", "windows", "--ngram-table"]
    replies = []
    for place in ("memory", "file"):
        capsys.readouterr()
        assert run([*command, place]) == 0
        replies.append(capsys.readouterr().out)
    assert replies[0] == replies[1] != ""


def test_what_collects_without_having_asked_does_not_wait_for_ever() -> None:
    """Launches are compiled in any order, in several processes, rows of chunks among them."""
    with tabled(published()) as found:
        stage = Stage(found.description, StageSizes(2, 64), (4,))
        stage.set_rows(4, [RowsPart(0, 0, token_ids_of(4))])
        for step in ("n-grams: ask", "n-grams: ask", "n-grams: collect"):
            with launching(stage):
                for launch in stage.launches(Variant.FORWARD, 4):
                    if launch.step == step:
                        launch.run()
            forget(stage)
        assert len(found.tables.windows[0]) == 0


def test_the_skeleton_that_is_compiled_asks_as_the_model_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    request = CompileRequest(published(), "none", 2, 0, 0, tmp_path, reads_tables=True, waits_in_stream=True)
    description = skeleton_of(request, torch.device("cpu"))
    stage = Stage(description, StageSizes(2, 64), (4,))
    steps = {launch.step for group in compile_share.step_groups(stage) for launch in group}
    assert {"n-grams: ask", "n-grams: wait", "n-grams: collect"} <= steps
    assert description.tables is not None
    description.tables.close()
