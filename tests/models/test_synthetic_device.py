"""A model made in memory has the family's tensors, values of a usual size, and runs; the same seed gives it again."""

from typing import Any

import pytest
import torch

from strata.errors import SettingsError
from strata.models.device.describe import describe
from strata.models.device.description import DeviceModel
from strata.models.device.held import DeviceExperts, DeviceMatrices
from strata.models.device.synthetic import FORMATS, SyntheticForm, SyntheticWeights
from strata.models.families import family_of
from strata.quant.layout import Code
from strata.weights.presets import STYLES, preset_config, set_fields, text_part

CPU = torch.device("cpu")
FAMILIES = ("qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe", "llama")


def made(family: str, form: SyntheticForm | None = None, fields: tuple[str, ...] = ()) -> tuple[Any, SyntheticWeights]:
    config = preset_config(family, "tiny")
    set_fields(config, fields)
    found = family_of(config)
    parsed = found.parse_config(config)
    shapes = {name: shape for name, shape in found.expected_tensors(parsed).items() if not name.startswith("mtp.")}
    return (found, parsed), SyntheticWeights(shapes, STYLES[family], CPU, form)


def described(family: str) -> DeviceModel:
    (found, parsed), weights = made(family)
    return describe(found.build(parsed, weights), CPU)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_built_and_described(family: str) -> None:
    model = described(family)
    assert len(model.layers) == text_part(preset_config(family, "tiny"))["num_hidden_layers"]
    assert model.head.shape == (model.vocabulary, model.hidden)


@pytest.mark.parametrize("bits", sorted(FORMATS))
def test_weights_take_their_bits_and_have_the_usual_size(bits: float) -> None:
    fields = ("hidden_size=128", "moe_intermediate_size=64", "hc_lowrank=64")
    _, weights = made("qwen4_exp", SyntheticForm(bits, bits), fields)
    head = weights.matrix("model.layers.0.linear_attn.out_proj.weight")
    assert isinstance(head, DeviceMatrices)
    values = head.parts[0].decode()
    assert head.total_bytes * 8 / values.numel() == pytest.approx(bits, rel=0.01)
    assert values.square().mean().sqrt() == pytest.approx(values.shape[1] ** -0.5, rel=0.1)
    experts = weights.experts("model.layers.1.mlp.")
    assert isinstance(experts, DeviceExperts)
    rows = experts.rows(torch.randn(2, 128), torch.tensor([[0, 3], [3, 15]]))
    assert torch.isfinite(rows).all()
    assert 0.01 < rows.std() < 10


@pytest.mark.parametrize("bits", sorted(FORMATS))
def test_weights_have_no_mean_though_the_integers_of_their_codes_have(bits: float) -> None:
    _, weights = made("qwen4_exp", SyntheticForm(bits, bits), ("hidden_size=512",))
    matrix = weights.matrix("model.layers.3.self_attn.q_proj.weight")
    assert isinstance(matrix, DeviceMatrices)
    values = matrix.parts[0].decode()
    assert abs(values.mean()) < 0.03 * values.std()  # codes alone: 0.41 of it at 2.25 bits, 0.11 at 4.5


def test_names_of_one_input_are_joined_and_a_router_stays_float() -> None:
    _, weights = made("qwen4_exp")
    prefix = "model.layers.0.linear_attn.in_proj_"
    joined = weights.matrix(*(f"{prefix}{part}.weight" for part in ("qkv", "z", "b", "a")))
    assert isinstance(joined, DeviceMatrices)
    assert len(joined.parts) == 1
    router = weights.matrix("model.layers.0.mlp.gate.weight")
    assert isinstance(router, DeviceMatrices)
    assert router.parts[0].layout.code is Code.F32


def test_held_bytes_are_what_the_parts_take() -> None:
    _, weights = made("qwen4_exp")
    name = "model.layers.0.linear_attn.out_proj.weight"
    assert weights.held_bytes(name) == weights.matrix(name).total_bytes  # type: ignore[union-attr]
    prefix = "model.layers.0.mlp."
    experts = weights.experts(prefix)
    assert isinstance(experts, DeviceExperts)
    both = sum(weights.held_bytes(f"{prefix}experts.{part}_proj") for part in ("gate_up", "down"))
    assert both <= experts.blobs.memory.numel() < 1.1 * both


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    name = "model.layers.3.self_attn.q_proj.weight"

    def codes(seed: int) -> torch.Tensor:
        return made("qwen4_exp", SyntheticForm(seed=seed))[1].matrix(name).parts[0].codes  # type: ignore[union-attr]

    assert torch.equal(codes(1), codes(1))
    assert not torch.equal(codes(1), codes(2))


def test_bits_that_no_format_has_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"--experts-bits 5 does not work; .*4\.5 \(Q4_0\)"):
        SyntheticForm(experts_bits=5)
