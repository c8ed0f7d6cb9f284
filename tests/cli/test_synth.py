"""`strata synth` writes what the hub would publish: transformers loads it, and our source reads the same tensors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from strata.cli.app import run
from strata.cli.synth import synth
from strata.errors import ConfigError, SettingsError, StrataError, TextError
from strata.models.base import Segment
from strata.models.families import family_of
from strata.weights import presets
from strata.weights.fit import require_fit
from strata.weights.safetensors import SafetensorsSource, open_model

SMALL_TOKENIZER = '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}}'
FAMILIES = ("qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe")


def made(out: Path, family: str | None = None, **options: Any) -> SafetensorsSource:
    if family is None:
        synth(str(out), **options)
    else:
        synth(family, out, **options)
    source = open_model(out)
    found = family_of(source.config)
    require_fit(source, found.expected_tensors(found.parse_config(source.config)))
    return source


def published_names(directory: Path) -> set[str]:
    names: set[str] = set()
    for file in directory.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names |= set(opened.keys())
    return names


def logits_of(source: SafetensorsSource, rows: int = 40) -> torch.Tensor:
    family = family_of(source.config)
    model = family.load(family.parse_config(source.config), source, torch.float32)
    token_ids = torch.arange(rows) * 37 % model.vocabulary_size
    return model.read([Segment(model.new_state(), token_ids)]).logits


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_and_its_logits_are_of_order_one(tmp_path: Path, family: str, dtype: Any) -> None:
    logits = logits_of(made(tmp_path / "m", family, dtype=dtype, fp8_block=48))
    assert 0.1 < float(logits.std()) < 3


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen4_exp"])
def test_transformers_loads_the_same_tensors(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    if family == "qwen4_exp" and not hasattr(transformers, "Qwen4ExpForConditionalGeneration"):
        pytest.skip("this transformers does not know qwen4_exp")
    source = made(tmp_path / "m", family, shard_mib=1)
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    kind = {"qwen3_moe": "Qwen3MoeForCausalLM", "qwen4_exp": "Qwen4ExpForCausalLM"}[family]
    model, report = getattr(transformers, kind).from_pretrained(
        tmp_path / "m", dtype=torch.bfloat16, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert all("mtp" in key for key in report["unexpected_keys"])
    theirs = model.state_dict()
    ours = [name for name in source.names() if not name.startswith("mtp.")]
    assert len(ours) > 20
    for name in ours:
        assert torch.equal(source.tensor(name, torch.bfloat16), theirs[name]), name
    assert set(ours) == set(theirs) - {"lm_head.weight"}  # tied


def test_the_same_arguments_give_the_same_bytes_and_cuts_do_not_matter(tmp_path: Path) -> None:
    first = made(tmp_path / "a", "qwen4_exp")
    made(tmp_path / "b", "qwen4_exp")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    cut = made(tmp_path / "c", "qwen4_exp", experts="separate", shard_mib=1)
    assert any(".experts.3.up_proj.weight" in name for name in published_names(tmp_path / "c"))
    for name in first.names():
        assert torch.equal(first.tensor(name, torch.float32), cut.tensor(name, torch.float32))


def test_the_layout_is_that_of_the_release(tmp_path: Path) -> None:
    made(tmp_path / "m", "qwen4_exp", dtype="fp8")
    names = published_names(tmp_path / "m")
    prefix = "model.language_model.layers."
    for name in (
        f"{prefix}0.mlp.experts.15.down_proj.weight_scale_inv",
        f"{prefix}1.ple.ple_embedding.ngram_embedding.shard_2.weight",
        f"{prefix}1.ple.ple_embedding.layer_multipliers",
        f"{prefix}0.linear_attn.in_proj_qkv.weight_scale_inv",
        "mtp.fc_hidden.weight",
    ):
        assert name in names
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
    assert config["text_config"]["model_type"] == "qwen4_exp_text"
    assert (tmp_path / "m" / "generation_config.json").is_file()


def test_layers_and_fields_change_the_model(tmp_path: Path) -> None:
    source = made(tmp_path / "m", "qwen3_next", layers=2, fields=["num_experts=5", "hidden_size=48"])
    assert source.shape("model.layers.1.mlp.experts.gate_up_proj") == (5, 64, 48)
    assert "model.layers.2.input_layernorm.weight" not in source.names()


def test_a_model_like_another_has_its_shapes_and_its_tokenizer(tmp_path: Path) -> None:
    first = made(tmp_path / "a", "qwen4_exp", fields=["num_experts=6"], dtype="fp8")
    (tmp_path / "a" / "tokenizer.json").write_text(SMALL_TOKENIZER)
    second = made(tmp_path / "b", like=tmp_path / "a", seed=1)
    assert {name: second.shape(name) for name in second.names()} == {name: first.shape(name) for name in first.names()}
    assert second.stored_code("model.layers.0.mlp.experts.down_proj") == "BF16"
    assert (tmp_path / "b" / "tokenizer.json").read_text() == (tmp_path / "a" / "tokenizer.json").read_text()
    made(tmp_path / "c", like=tmp_path / "a" / "config.json", layers=3)


def test_a_tokenizer_that_is_larger_than_the_vocabulary_is_not_copied(tmp_path: Path) -> None:
    made(tmp_path / "m", "qwen3_moe", fields=["vocab_size=64"])
    assert not (tmp_path / "m" / "tokenizer.json").exists()


def test_a_text_only_config_gives_text_only_names(tmp_path: Path) -> None:
    made(tmp_path / "a", "qwen4_exp")
    text = json.loads((tmp_path / "a" / "config.json").read_text())["text_config"]
    (tmp_path / "text.json").write_text(json.dumps(text))
    made(tmp_path / "b", like=tmp_path / "text.json")
    assert "model.embed_tokens.weight" in published_names(tmp_path / "b")


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "a", "qwen3_moe")
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    with pytest.raises(TextError, match=r"tokenizer\.json cannot be used"):
        made(tmp_path / "b", like=tmp_path / "a")
    assert not (tmp_path / "b").exists()


def test_only_the_config_of_the_published_model(tmp_path: Path) -> None:
    synth("qwen4_exp", tmp_path / "m", preset="published", config_only=True)
    assert [file.name for file in (tmp_path / "m").iterdir()] == ["config.json"]


def test_the_help_names_every_family_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["synth", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    *others, last = presets.STYLES
    assert f"{', '.join(others)} or {last};" in said
    assert set(presets.STYLES) == set(FAMILIES) | {"llama"}


def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path: Path) -> None:
    out = tmp_path / "m"
    cases: list[tuple[tuple[Any, ...], dict[str, Any], type[StrataError], str]] = [
        ((), {}, SettingsError, "give a family or --like"),
        (("qwen4_exp",), {}, SettingsError, "a directory to make"),
        (("qwen9", out), {}, SettingsError, "no model family 'qwen9'"),
        (("qwen4_exp", out), {"like": tmp_path}, SettingsError, "give a family or --like"),
        (("qwen4_exp", out), {"layers": 0}, SettingsError, "--layers is 0; a whole number from 1"),
        (("qwen4_exp", out), {"fp8_block": 100_000, "dtype": "fp8"}, SettingsError, "--fp8-block is 100000"),
        (("qwen4_exp", out), {"fields": ["hiden_size=3"]}, ConfigError, "hiden_size"),
        (("qwen4_exp", out), {"fields": ["num_experts_per_tok=99"]}, ConfigError, "num_experts_per_tok = 99"),
        ((out,), {"like": tmp_path / "none"}, StrataError, "no model directory"),
        ((out,), {"like": tmp_path / "none.json"}, ConfigError, "no such file"),
        (("qwen4_exp", tmp_path), {}, StrataError, "exists already"),
    ]
    for arguments, options, kind, words in cases:
        with pytest.raises(kind, match=words) as caught:
            synth(*arguments, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(StrataError, match="has no room"):
        synth("qwen4_exp", out, preset="published", fields=["num_experts=1000000", "mtp_num_hidden_layers=0"])
    assert list(tmp_path.iterdir()) == []
