"""`strata convert` writes files that Strata runs and llama.cpp's keys describe; mistakes leave nothing."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from strata import models_shipped
from strata.api import Engine
from strata.cli.app import run
from strata.cli.convert import convert_model
from strata.cli.gguf_keys import architecture_for, model_pairs
from strata.cli.gguf_plan import check_type, writable_types
from strata.cli.synth import synth
from strata.errors import ConfigError, ModelError, SettingsError, StrataError
from strata.models.families import family_of
from strata.types import TextPiece
from strata.weights.gguf import open_gguf
from strata.weights.gguf_source import open_gguf_model
from strata.weights.safetensors import open_model
from tests.weights import gguf_models

SHIPPED = models_shipped.default_path()


def test_the_shipped_model_converts_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert "draft layer (MTP) is left out" in " ".join(convert_model(SHIPPED, path, "Q8_0"))
    name = "model.layers.0.mlp.experts.down_proj"
    ours, theirs = (source.tensor(name, torch.float32) for source in (open_gguf_model(path), open_model(SHIPPED)))
    assert (ours - theirs).norm() < 0.02 * theirs.norm()
    with Engine(path) as engine:
        assert engine.has_chat_template
        text = "".join(event.text for event in engine.generate("harbour (noun): a") if isinstance(event, TextPiece))
    assert len(text) > 3


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q8_0", "Q2_0", "Q4_K", "Q6_K", "MXFP4"])
def test_every_type_is_written_where_it_fits_and_small_tensors_stay_exact(kind: str) -> None:
    tensors = open_gguf(gguf_models.gguf("qwen4_exp", kind)).tensors
    expert_types = {tensor.type.name for name, tensor in tensors.items() if "_exps" in name}
    short_rows = {"Q4_K": {"Q5_0"}, "Q6_K": {"Q8_0"}, "Q2_0": {"Q2_0", "Q4_0"}}  # rows of 64 and 32 weights
    assert expert_types == short_rows.get(kind, {kind})
    small = {tensor.type.name for name, tensor in tensors.items() if "norm" in name or "ffn_gate_inp" in name}
    assert small == {"F32"}
    assert torch.isfinite(gguf_models.logits(open_gguf_model(gguf_models.gguf("qwen4_exp", kind)), 20)).all()


@pytest.mark.parametrize("family", gguf_models.FAMILIES)
def test_the_keys_are_those_that_llama_cpp_needs(family: str) -> None:
    metadata = open_gguf(gguf_models.gguf(family, "F32")).metadata
    arch = metadata.text("general.architecture")
    needed = ["block_count", "context_length", "embedding_length", "attention.head_count", "attention.head_count_kv"]
    needed += ["attention.layer_norm_rms_epsilon", "rope.dimension_count", "attention.key_length"]
    if arch != "llama":
        needed += ["expert_count", "expert_used_count", "expert_feed_forward_length"]
    if arch not in ("llama", "qwen3moe"):
        needed += [f"ssm.{key}" for key in ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")]
    if arch in ("qwen4exp", "qwen35moe"):
        needed += ["rope.dimension_sections"]
    if arch == "qwen4exp":
        needed += ["hyper_connection.count", "hyper_connection.low_rank", "ple.eos_token_id", "ple.layer_multipliers"]
        assert metadata.integers("qwen4exp.attention.compress_ratios") == [0, 0, 0, 4]
    assert [key for key in needed if f"{arch}.{key}" not in metadata] == []


def test_rows_that_are_too_short_take_the_nearest_type() -> None:
    tensors = open_gguf(gguf_models.gguf("qwen4_exp", "Q4_K")).tensors
    assert tensors["blk.0.ffn_up_exps.weight"].type.name == "Q5_0"  # rows of 64
    assert tensors["blk.3.indexer.q_proj.weight"].type.name == "BF16"
    assert open_gguf(gguf_models.gguf("qwen4_exp", "Q2_0")).tensors["blk.0.ffn_up_exps.weight"].type.name == "Q2_0"
    few = open_gguf(gguf_models.gguf("qwen3_moe", "Q4_0")).tensors
    assert few["token_embd.weight"].type.name == "Q8_0"  # tied: it is the head too


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = str(gguf_models.directory("qwen3_moe")), tmp_path / "m.gguf"
    assert run(["convert", source, str(out), "--type", "q8_0"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "m.gguf: " in said
    assert "Q8_0" in said
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert run(["inspect", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["family"] == "qwen3_moe"
    assert report["stored"]["by_part"]["routed experts"].keys() == {"Q8_0"}
    assert run(["inspect", str(out)]) == 0
    assert "routed experts: " in capsys.readouterr().out


def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path: Path) -> None:
    source, out = gguf_models.directory("qwen3_moe"), tmp_path / "m.gguf"
    made = gguf_models.gguf("qwen3_moe", "F32")
    cases: list[tuple[Path, Path, str, type[StrataError], str]] = [
        (source, out, "Q9", SettingsError, "--type Q9 does not work; one of these does: F32, F16, BF16"),
        (source, out, "IQ2_XS", SettingsError, "one of these does"),
        (made, out, "Q8_0", ModelError, "is a GGUF file already"),
        (source, made, "Q8_0", StrataError, "exists already"),
        (tmp_path / "none", out, "Q8_0", ModelError, "no model directory"),
    ]
    for directory, target, kind, error, words in cases:
        with pytest.raises(error, match=words) as caught:
            convert_model(directory, target, kind)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (["ple_layer_ids=[1,2]"], "ple_layer_ids = .1, 2.: 2 n-gram layers; the format has room for one"),
        (["output_gate_type=silu"], "output_gate_type = silu"),
        (["norm_topk_prob=false"], "norm_topk_prob = false"),
        (["linear_value_head_dim=32"], "they must be alike"),
    ],
)
def test_models_that_the_format_cannot_hold_are_refused(tmp_path: Path, fields: list[str], words: str) -> None:
    synth("qwen4_exp", tmp_path / "m", fields=fields)
    with pytest.raises(ConfigError, match=words):
        convert_model(tmp_path / "m", tmp_path / "m.gguf", "Q8_0")
    assert not (tmp_path / "m.gguf").exists()


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_model(gguf_models.directory("qwen3_moe"), tmp_path / "m.gguf", "Q8_0", stop)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_tokenizer_gives_a_file_without_one(tmp_path: Path) -> None:
    shutil.copytree(gguf_models.directory("qwen3_moe"), tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink(missing_ok=True)
    assert "the file has none" in convert_model(tmp_path / "m", tmp_path / "m.gguf", "Q8_0")[1]
    with pytest.raises(StrataError, match="kind 'none'"):
        Engine(tmp_path / "m.gguf")


def test_a_nearly_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("strata.weights.gguf_writer.disk_free_bytes", lambda _: 1 << 20)
    with pytest.raises(StrataError, match="has no room"):
        convert_model(gguf_models.directory("qwen3_moe"), tmp_path / "m.gguf", "Q8_0")
    assert list(tmp_path.iterdir()) == []


def test_types_are_named_in_any_case() -> None:
    assert check_type("q4_k") == "Q4_K"
    assert {"F32", "BF16", "Q2_0", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4"} <= set(writable_types())


def test_the_architecture_follows_from_the_config() -> None:
    config = open_model(gguf_models.directory("qwen3_next")).config
    parsed = family_of(config).parse_config(config)
    assert architecture_for(parsed).name == "qwen3next"
    assert model_pairs(parsed, "m", "Q4_0", None)[3].value == 2


def test_a_file_that_llama_cpp_does_not_load_is_told(tmp_path: Path) -> None:
    for width, expected in ((64, []), (32, ["ple_embed_dim = 32 and hidden_size = 64"])):
        synth("qwen4_exp", tmp_path / f"m{width}", fields=[f"ple_embed_dim={width}"])
        said = convert_model(tmp_path / f"m{width}", tmp_path / f"{width}.gguf", "Q8_0")
        warnings = [sentence for sentence in said if sentence.startswith("warning: llama.cpp cannot load this file")]
        assert [words in warning for words, warning in zip(expected, warnings, strict=True)] == [True] * len(expected)


def test_end_ids_outside_the_vocabulary_are_told_and_not_written(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "m")
    fields = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(fields | {"eos_token_id": [2, 99_999]}))
    said = " ".join(convert_model(tmp_path / "m", tmp_path / "m.gguf", "Q8_0"))
    assert "warning: eos_token_id names 99,999, the vocabulary has 8,192 tokens" in said
    metadata = open_gguf(tmp_path / "m.gguf").metadata
    ends = [
        metadata.integer(f"tokenizer.ggml.{key}_token_id")
        for key in ("eos", "eot")
        if f"tokenizer.ggml.{key}_token_id" in metadata
    ]
    assert 2 in ends
    assert 99_999 not in ends
    with Engine(tmp_path / "m") as engine:
        assert any("eos_token_id names 99,999" in notice for notice in engine.notices)


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("strata.weights.gguf_writer._write_tensor", full)
    with pytest.raises(StrataError, match=r"has no room: the file takes .* nothing was kept"):
        convert_model(gguf_models.directory("qwen3_moe"), tmp_path / "m.gguf", "Q8_0")
    assert list(tmp_path.iterdir()) == []
