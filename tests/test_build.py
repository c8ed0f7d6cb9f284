"""From a directory to a loaded model: what belongs together, in which order it is checked, and what is set."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.api import Engine
from strata.build import load_model
from strata.cli.convert import convert_model
from strata.cli.synth import synth
from strata.engine.cpu_memory import CpuNeeds, plan_cpu_memory
from strata.errors import ConfigError, EngineError, ModelError, SettingsError, WeightFileError
from strata.hardware import MemoryFacts
from strata.models.families import FAMILIES
from strata.native import library
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.weights.safetensors import SafetensorsSource


def test_loaded_parts_belong_together(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, EngineSettings(threads=1))
    config = json.loads((tiny_model / "config.json").read_text())["text_config"]
    assert loaded.directory == tiny_model
    assert loaded.engine.context == config["max_position_embeddings"]
    assert loaded.tokenizer.vocabulary_size <= config["vocab_size"]
    assert config["eos_token_id"] in loaded.end_of_text_ids  # of the config, and the tokenizer's own
    assert loaded.tokenizer.eos_token_ids <= loaded.end_of_text_ids


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_every_family_answers(family: str, tmp_path: Path) -> None:
    synth(family, tmp_path / family, fields=["vocab_size=8192"])
    with Engine(tmp_path / family) as engine:
        reply = engine.chat([{"role": "user", "content": "Hello"}], SamplingOptions(max_tokens=4, ignore_eos=True))
        reply.text()
    assert reply.finished is not None
    assert reply.finished.usage.completion_tokens == 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_dtype_answers(tiny_model: Path, dtype: str) -> None:
    with Engine(tiny_model, dtype=dtype) as engine:
        assert engine.generate([5] * 70, SamplingOptions(max_tokens=3)).text() is not None


def test_threads_are_set_for_the_process(tiny_model: Path) -> None:
    before = torch.get_num_threads()
    try:
        load_model(tiny_model, EngineSettings(threads=3))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_smaller_context_is_taken_and_a_larger_one_refused(tiny_model: Path) -> None:
    assert load_model(tiny_model, EngineSettings(threads=1, context=100)).engine.context == 100
    with pytest.raises(SettingsError, match="at most 4096"):
        load_model(tiny_model, EngineSettings(context=4097))


def test_tokenizer_that_is_too_wide_for_the_model_is_refused(broken_model: Path) -> None:
    file = broken_model / "tokenizer.json"
    values = json.loads(file.read_text())
    vocabulary = values["model"]["vocab"]
    vocabulary.update({f"<far{extra}>": len(vocabulary) + extra for extra in range(100)})
    file.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="8,192"):
        load_model(broken_model, EngineSettings())


def test_cheap_checks_come_before_the_weights_are_read(broken_model: Path) -> None:
    for shard in broken_model.glob("*.safetensors"):
        content = bytearray(shard.read_bytes())
        content[-20000:] = b"\xff" * 20000  # not a number: seen only when the values are read
        shard.write_bytes(bytes(content))
    with pytest.raises(WeightFileError):
        load_model(broken_model, EngineSettings(threads=1))
    with pytest.raises(SettingsError):
        load_model(broken_model, EngineSettings(context=9999))


def test_model_that_does_not_fit_is_refused_before_it_is_read(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.build.read_memory", lambda: MemoryFacts(total=8 << 30, available=100 << 20))
    with pytest.raises(ModelError, match=r"needs 0\.5 GiB .* 0\.1 GiB are free"):
        load_model(tiny_model, EngineSettings())


def test_memory_that_runs_out_while_loading_is_an_engine_error(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("strata.weights.safetensors.read_piece", fail)
    with pytest.raises(EngineError, match="out of memory"):
        load_model(tiny_model, EngineSettings(threads=1))


def test_draft_layer_is_read_only_if_it_is_used(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = SafetensorsSource.tensor

    def watch(source: SafetensorsSource, name: str, dtype: torch.dtype) -> torch.Tensor:
        read.append(name)
        return real(source, name, dtype)

    monkeypatch.setattr(SafetensorsSource, "tensor", watch)
    load_model(tiny_model, EngineSettings(threads=1))
    assert not [name for name in read if name.startswith("mtp.")]
    load_model(tiny_model, EngineSettings(threads=1, drafts=1))
    assert [name for name in read if name.startswith("mtp.")]


def test_drafts_without_a_draft_layer_are_a_notice(tmp_path: Path) -> None:
    synth("qwen3_moe", tmp_path / "model", fields=["vocab_size=8192"])
    (notice,) = load_model(tmp_path / "model", EngineSettings(threads=1, drafts=2)).notices
    assert "drafts = 2" in notice


OF_A_CARD: dict[str, Any] = {
    "verify_profile": True,
    "vram_gib": 1.0,
    "ram_gib": 8.0,
    "cache_gib": 0.0,
    "resident": True,
}
OF_A_CARD |= {"pcie_share": 0.0, "expert_swaps": False, "expert_profile": "some.profile"}


@pytest.mark.parametrize(("name", "value"), OF_A_CARD.items())
def test_what_only_a_card_heeds_is_a_notice_where_the_cpu_computes(tiny_model: Path, name: str, value: Any) -> None:
    settings = EngineSettings(threads=1, device="cpu", **{name: value})
    (notice,) = load_model(tiny_model, settings).notices
    assert notice.startswith(f"{name} changes nothing")


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_experts_stay_in_the_file_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ["vocab_size=8192", "hidden_size=64", "moe_intermediate_size=128", "num_experts=32"]
    synth("qwen3_moe", tmp_path / "model", fields=sizes)
    file = tmp_path / "model.gguf"
    convert_model(tmp_path / "model", file, "Q8_0")
    seen: list[CpuNeeds] = []

    def plan(needs: CpuNeeds, *arguments: Any, **named: Any) -> int | None:
        seen.append(needs)
        return plan_cpu_memory(needs, *arguments, **named)

    monkeypatch.setattr("strata.build.plan_cpu_memory", plan)
    prompt, options = [5, 300, 7] * 30, SamplingOptions(max_tokens=12, ignore_eos=True)
    with Engine(file, context=256, mmap=True) as whole:
        wanted = whole.generate(prompt, options).text()
        assert "mmap changes nothing: all experts lie in memory" in whole.notices
    for share in (0.6, 0.3):
        usable = int(seen[0].whole + seen[0].conversations - (1 - share) * seen[0].experts)
        monkeypatch.setattr("strata.build.read_memory", lambda usable=usable: MemoryFacts(1 << 40, usable))
        with Engine(file, context=256, mmap=True, ram_gib=usable / 2**30) as filed:
            assert not any("ram_gib" in notice or "mmap" in notice for notice in filed.notices)
            assert filed._ready().slots == 1, "experts have all that one conversation leaves"
            assert filed.generate(prompt, options).text() == wanted
            before = os.stat(file)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
            with pytest.raises(EngineError, match=r"layer \d: expert \d+ in model.gguf: the model file changed"):
                filed.generate([9, 1, 400] * 30, options).text()
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert filed.generate(prompt, options).text() == wanted
