"""A directory read with --quantize: matrices have the packed values for everybody, the rest is untouched."""

from pathlib import Path

import pytest
import torch

from strata.build import load_model
from strata.settings import EngineSettings
from strata.weights.opening import open_model
from strata.weights.quantizing import QuantizingSource
from strata.weights.safetensors import SafetensorsSource

MATRIX = "model.layers.0.linear_attn.out_proj.weight"


def quantizing(directory: Path, choice: str) -> QuantizingSource:
    source = open_model(directory, choice)
    assert isinstance(source, QuantizingSource)
    return source


@pytest.mark.parametrize(("choice", "worst"), [("code4", 0.08), ("code8", 0.006)])
def test_matrices_have_the_values_that_are_packed(tiny_model: Path, choice: str, worst: float) -> None:
    source, stored = quantizing(tiny_model, choice), open_model(tiny_model)
    packed = source.packed(MATRIX)
    assert packed is not None
    assert source.stored_code(MATRIX) == choice == packed.layout.code.value
    assert torch.equal(source.tensor(MATRIX, torch.float32), packed.decode())
    wanted = stored.tensor(MATRIX, torch.float64)
    error = source.tensor(MATRIX, torch.float64) - wanted
    assert 0 < error.norm() <= worst * wanted.norm()
    assert source.stored_code("lm_head.weight") == "code8"


def test_everything_else_stays_as_it_is_stored(tiny_model: Path) -> None:
    source, stored = quantizing(tiny_model, "code4"), open_model(tiny_model)
    for name in ("model.layers.0.linear_attn.A_log", "model.layers.0.mlp.gate.weight", "model.embed_tokens.weight"):
        assert source.packed(name) is None
        assert source.choice_of(name) is None
        assert torch.equal(source.tensor(name, torch.float32), stored.tensor(name, torch.float32))


def test_none_opens_the_files_as_they_are(tiny_model: Path) -> None:
    assert type(open_model(tiny_model)) is SafetensorsSource


def test_a_quantized_model_loads_and_says_so(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, EngineSettings(quantize="code4", threads=1))
    assert "4.5 bits a weight" in " ".join(loaded.notices)
