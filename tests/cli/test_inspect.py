"""`strata inspect` says what a model is and needs, in words and as JSON, without reading a weight."""

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strata import models_shipped
from strata.cli import model_report
from strata.cli.app import run
from strata.cli.flags import EngineFlags
from strata.cli.inspect import inspect
from strata.cli.model_report import Verdict, decide, decide_with_files, gib
from strata.cli.synth import synth
from strata.engine.cpu_memory import CpuNeeds
from strata.errors import ConfigError, ModelError, SettingsError, WeightFileError
from strata.hardware import GpuFacts, MemoryFacts, read_hardware
from strata.models.needs import Placement
from strata.settings import EngineSettings


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "tiny"
    synth("qwen4_exp", out, dtype="fp8", fp8_block=64)
    return out


def as_json(capsys: pytest.CaptureFixture[str], path: Path, **options: Any) -> dict[str, Any]:
    capsys.readouterr()
    inspect(path, as_json=True, engine=EngineFlags(**options))
    return json.loads(capsys.readouterr().out)


def test_a_model_with_weights(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = as_json(capsys, tiny, context=100)
    assert report["family"] == "qwen4_exp"
    assert report["layers"] == {"delta net": 3, "indexed attention": 1}
    assert report["stored"]["is_present"]
    assert set(report["stored"]["formats"]) == {"F8_E4M3", "BF16"}
    in_files = sum(file.stat().st_size for file in tiny.glob("*.safetensors"))
    assert 0 < in_files - report["stored"]["total_bytes"] < 100_000  # headers and the hash's integers
    assert report["context"] == 100
    assert report["can_run"]
    everything = report["needs"]["everything_in_ram"]
    scales = everything["ram"]["routed experts"] - report["parameters"]["routed"]  # FP8 stays FP8, a byte a weight
    assert 0 < scales < 0.1 * report["parameters"]["routed"]
    assert report["stored"]["notices"] == []


def test_the_words_hold_what_matters(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(tiny)
    out = capsys.readouterr().out
    for words in (str(tiny), "3 delta net + 1 indexed attention", "16 a layer, top 4 + 1 shared", "MTP", "n-gram table",
                  "F8_E4M3", "chat template", "This PC can run it on its CPU: it needs"):  # fmt: skip
        assert words in out
    assert len(out.strip().splitlines()[-1]) > 80  # the verdict is one line, however narrow the terminal


def test_half_the_number_format_needs_half_the_memory(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_CPU_PATH", "torch")  # the library holds weights in the files' types
    stored = as_json(capsys, tiny, dtype="float32")["needs"]["everything_in_ram"]["ram"]
    monkeypatch.setenv("STRATA_KV_KIND", "f32")  # as computed
    wide, narrow = (as_json(capsys, tiny, dtype=dtype)["needs"] for dtype in ("float64", "float32"))
    for part in ("routed experts", "dense", "state"):
        assert wide["everything_in_ram"]["ram"][part] == 2 * narrow["everything_in_ram"]["ram"][part]
    assert wide["dense_on_card"] == narrow["dense_on_card"]
    assert stored["state"] < narrow["everything_in_ram"]["ram"]["state"]


def test_the_published_config_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synth("qwen4_exp", tmp_path / "m", preset="published", config_only=True)
    report = as_json(capsys, tmp_path / "m")
    parameters = report["parameters"]
    assert [round(parameters[part] / 1e9, 1) for part in ("routed", "dense", "ngram")] == [120.8, 4.3, 51.2]
    assert not report["stored"]["is_present"]
    assert report["needs"]["everything_in_ram"]["in_files"] == {"n-gram table": 4 * parameters["ngram"]}
    inspect(tmp_path / "m")
    assert "there are no weight files here" in capsys.readouterr().out


def test_no_weight_is_read(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "m"
    copy.mkdir()
    for file in tiny.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    file = copy / "model.safetensors"
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:header] + b"\xff" * (len(data) - header))  # NaN in every type
    assert as_json(capsys, copy)["can_run"]


def change(model: Path, copy: Path, **fields: Any) -> Path:
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text())
    config["text_config"] |= fields
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_files_that_do_not_fit_the_config_are_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightFileError, match=r"has the shape \[16, 64, 64\], config.json means \[16, 80, 64\]"):
        inspect(change(tiny, tmp_path / "a", moe_intermediate_size=40))
    with pytest.raises(WeightFileError, match="more, the files do not hold it"):
        inspect(change(tiny, tmp_path / "b", num_hidden_layers=5))


def test_what_cannot_be_used_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no model directory"):
        inspect(tmp_path / "none")
    with pytest.raises(ConfigError, match="hidden_act"):
        inspect(change(tiny, tmp_path / "a", hidden_act="gelu"))
    with pytest.raises(SettingsError, match="takes from 1 to 4,096 tokens"):
        inspect(tiny, engine=EngineFlags(context=5000))
    with pytest.raises(SettingsError, match="dtype"):
        inspect(tiny, engine=EngineFlags(dtype="float8"))
    (tmp_path / "config.json").write_text('{"model_type": "llama9"}')
    with pytest.raises(ConfigError, match="'llama9' is not supported; supported: qwen4_exp"):
        inspect(tmp_path)


def test_a_name_cannot_steer_the_terminal(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(change(tiny, tmp_path / "\x1b[31mred [bold]x", max_position_embeddings=300))
    out = capsys.readouterr().out
    assert "\x1b[31m" not in out
    assert "[bold]x" in out


def needs(gibibytes: float) -> Placement:
    return Placement({"dense": int(gibibytes * 2**30)}, {}, {})


def test_the_verdict_says_what_would_help() -> None:
    memory = MemoryFacts(total=32 << 30, available=20 << 30)
    fits = decide(needs(19), memory, "float32", ["tokenizer", "weights"])
    assert fits.can_run
    start = "This PC could run it on its CPU once its tokenizer and weights are there: "
    assert fits.sentence == start + "it needs 19.0 GiB of RAM in float32, 20.0 GiB are free."
    for needed, words in ((30, "32.0 GiB in all: close other programs"), (90, "it has 32.0 GiB in all")):
        verdict = decide(needs(needed), memory, "float32")
        assert not verdict.can_run
        assert words in verdict.sentence
    limited = MemoryFacts(total=32 << 30, available=20 << 30, limit=4 << 30, limit_available=1 << 30)
    assert "1.0 GiB are free (it has 4.0 GiB in all)" in decide(needs(9), limited, "float32").sentence


def test_sizes_in_words() -> None:
    assert [gib(size) for size in (2048, 113 << 20, 63.2 * 2**30, 3 << 40)] == [
        "2.0 KiB",
        "113.0 MiB",
        "63.2 GiB",
        "3.00 TiB",
    ]


def test_without_a_path_it_is_the_shipped_model(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_shipped, "default_path", lambda: tiny)
    inspect()
    assert str(tiny) in capsys.readouterr().out
    monkeypatch.setattr(models_shipped, "default_path", lambda: tmp_path)
    with pytest.raises(ModelError, match="ships no model"):
        inspect()


def test_the_text_side_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m"
    shutil.copytree(models_shipped.default_path(), model)
    text = as_json(capsys, model)["text"]
    assert text["tokenizer"] == "loads, 8,192 tokens"
    assert text["template"].startswith("works, ")
    assert text["problems"] == []
    (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}")
    text = as_json(capsys, model)["text"]
    assert text["template"] == "does not work"
    assert "endfor" in text["problems"][0]
    inspect(model)
    assert "note: " in capsys.readouterr().out
    (model / "tokenizer.json").write_text("{")
    text = as_json(capsys, model)["text"]
    assert (text["tokenizer"], text["template"]) == ("does not load", "not tried")
    assert "is not valid JSON" in text["problems"][0]


def test_end_ids_that_the_model_cannot_say_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m"
    shutil.copytree(models_shipped.default_path(), model)
    (model / "generation_config.json").write_text('{"eos_token_id": [2, 8192, -1]}')
    assert (
        "eos_token_id names -1, 8,192, the vocabulary has 8,192 tokens" in as_json(capsys, model)["text"]["problems"][0]
    )


def test_it_says_what_the_columns_of_a_card_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "The last two columns are the least that a card needs, with all experts in RAM; as many as fit" in out
    assert "not built yet" not in out


def pc_with_card(monkeypatch: pytest.MonkeyPatch, vram: int, ram: int) -> None:
    hardware = read_hardware()
    card = GpuFacts("a card", vram, vram, (9, 0))
    memory = MemoryFacts(total=ram, available=ram)
    found = dataclasses.replace(hardware, memory=memory, gpus=(card,))
    monkeypatch.setattr(model_report, "read_hardware", lambda: found)


@pytest.mark.parametrize(
    ("vram", "spare_ram", "on_card", "on_cpu"),
    [
        (4 << 30, 1 << 30, True, True),
        (4 << 30, -1, True, False),  # a byte less than everything takes
        (1 << 29, 1 << 30, False, True),
        (4 << 30, -(1 << 29), False, False),
    ],
)
def test_a_card_and_the_cpu_are_judged_each_by_itself(
    vram: int,
    spare_ram: int,
    on_card: bool,
    on_cpu: bool,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = as_json(capsys, tiny)["needs"]["everything_in_ram"]["ram"]
    pc_with_card(monkeypatch, vram, sum(needs.values()) + spare_ram)
    found = as_json(capsys, tiny)
    assert found["can_run"] == (on_card or on_cpu)
    assert (found["card"]["plan"]["refusal"] is None) == on_card
    inspect(tiny)
    *_, of_card, of_cpu = capsys.readouterr().out.strip().splitlines()
    assert of_card.startswith(f"This PC can{'' if on_card else 'not'} run it on its card: ")
    assert of_cpu.startswith(f"This PC can{'' if on_cpu else 'not'} run it on its CPU")


def test_of_a_config_alone_only_the_cpu_is_judged(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pc_with_card(monkeypatch, 4 << 30, 8 << 30)
    shutil.copy(tiny / "config.json", tmp_path)
    inspect(tmp_path)
    out = capsys.readouterr().out
    assert "on its CPU" in out and "on its card" not in out


def test_experts_in_files_make_a_model_run_that_memory_does_not_hold() -> None:
    memory, gib = MemoryFacts(64 << 30, 16 << 30), 1 << 30
    needs = CpuNeeds(60 * gib, 50 * gib, gib, gib, "the files' types", None)
    short = Verdict(False, "It does not fit.")
    assert decide_with_files(short, needs, memory, EngineSettings(mmap=True)) == Verdict(
        True,
        "This PC can run it on its CPU with experts left in its file: 3.0 GiB of memory are for those that are read "
        "when they are asked for, of 50.0 GiB.",
    )
    hint = Verdict(False, "It does not fit. With `--mmap`, which leaves experts in its file, it can.")
    assert decide_with_files(short, needs, memory, EngineSettings()) == hint
    assert decide_with_files(short, replace(needs, filing_problem="no"), memory, EngineSettings(mmap=True)) == short
    assert decide_with_files(short, replace(needs, least_read=9 * gib), memory, EngineSettings(mmap=True)) == short
