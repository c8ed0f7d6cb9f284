"""`strata synth FAMILY OUT.gguf`: random blocks that load, compute and come out the same again."""

from pathlib import Path

import pytest
import torch

from strata.build import load_model
from strata.cli.synth import synth
from strata.errors import SettingsError
from strata.models.base import LogitRows, Segment
from strata.settings import EngineSettings
from strata.weights.gguf import open_gguf


@pytest.mark.parametrize("family", ["qwen4_exp", "qwen3_moe", "qwen3_next", "llama"])
def test_the_file_loads_and_its_logits_are_of_a_models_size(family: str, tmp_path: Path) -> None:
    out = tmp_path / "random.gguf"
    synth(family, out, fields=["ple_embed_dim=64"] if family == "qwen4_exp" else [])
    model = load_model(out, EngineSettings()).engine.model
    logits = model.read([Segment(model.new_state(), torch.arange(5, 25))], LogitRows.ALL).logits
    assert torch.isfinite(logits).all()
    assert 0.05 < float(logits.std()) < 20


def test_the_types_are_those_that_were_asked_for(tmp_path: Path) -> None:
    synth("qwen3_moe", tmp_path / "a.gguf", expert_type="q8_0", dense_type="q4_0", fields=["hidden_size=128"])
    types = {name: tensor.type.name for name, tensor in open_gguf(tmp_path / "a.gguf").tensors.items()}
    assert {kind for name, kind in types.items() if "_exps" in name} == {"Q8_0"}
    assert types["blk.0.attn_q.weight"] == "Q4_0"
    assert types["blk.0.attn_norm.weight"] == "F32"


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        synth("qwen4_exp", tmp_path / f"{name}.gguf", seed=seed)
    a, b, c = ((tmp_path / f"{name}.gguf").read_bytes() for name in "abc")
    # the file's own name is among its metadata
    assert a[-100_000:] == b[-100_000:]
    assert a[-100_000:] != c[-100_000:]


def test_a_type_that_random_bytes_cannot_fill_is_refused_by_its_flag(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--expert-type Q4_K does not work for random weights"):
        synth("qwen4_exp", tmp_path / "a.gguf", expert_type="Q4_K")
    assert not list(tmp_path.iterdir())
