"""Random weights depend on names and seed only, and have the size that keeps activations of order 1."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from strata.weights.presets import quantization_fields
from strata.weights.safetensors import SafetensorsSource, open_model
from strata.weights.synthetic import PublishedStyle, hash_values, key_of, plan_tensors, rule_of
from strata.weights.writer import write_json, write_weights

EXPERTS = "model.layers.0.mlp.experts"
TABLE = "model.layers.1.ple.ple_embedding.ngram_embedding.weight"
SHAPES = {
    "model.embed_tokens.weight": (50, 16),
    f"{EXPERTS}.gate_up_proj": (3, 10, 16),
    f"{EXPERTS}.down_proj": (3, 16, 5),
    "model.layers.0.self_attn.q_proj.weight": (33, 16),
    "model.layers.0.input_layernorm.weight": (16,),
    "model.layers.0.linear_attn.A_log": (7,),
    TABLE: (101, 3),
    "mtp.layers.0.mlp.experts.down_proj": (2, 16, 5),
}


def splitmix64(counter: int, key: int) -> int:
    """The published function, one number at a time."""
    mask = (1 << 64) - 1
    z = (key + counter * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_values_are_sixteen_bits_of_splitmix64_of_the_counter() -> None:
    key = key_of("model.norm.weight", 3)
    for index, value in enumerate(hash_values(key, 0, 23).tolist()):
        bits = (splitmix64(index // 4, key) >> (16 * (index % 4))) & 0xFFFF
        assert value == (bits - 32767.5) / 32768


def test_any_stretch_can_be_made_on_its_own() -> None:
    whole = hash_values(5, 0, 300_000)
    for start, count in ((0, 1), (1, 2), (3, 5), (262_143, 9), (299_999, 1), (17, 0)):
        assert np.array_equal(hash_values(5, start, count), whole[start : start + count])


def test_values_look_uniform_and_names_and_seeds_are_independent() -> None:
    values = hash_values(key_of("a", 0), 0, 200_000)
    assert abs(values.mean()) < 0.005
    assert abs(values.std() - 1 / math.sqrt(3)) < 0.005
    assert np.abs(values).max() < 1
    for other in (key_of("b", 0), key_of("a", 1)):
        assert abs(np.corrcoef(values, hash_values(other, 0, 200_000))[0, 1]) < 0.01
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.01


def write(
    directory: Path, style: PublishedStyle, shard_bytes: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> SafetensorsSource:
    directory.mkdir()
    block = style.fp8_block
    write_json(directory / "config.json", {"quantization_config": quantization_fields(block)} if block else {})
    write_weights(directory, plan_tensors(shapes, style), shard_bytes, lambda count, name: None)
    return open_model(directory)


def test_the_same_model_comes_out_however_it_is_cut(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", PublishedStyle(), 1 << 20)
    nested = PublishedStyle(prefix="model.language_model.", experts_are_packed=False, ngram_shards=7)
    for number, (style, shard_bytes) in enumerate([(nested, 1 << 20), (nested, 100), (PublishedStyle(), 1)]):
        other = write(tmp_path / str(number), style, shard_bytes)
        assert set(other.names()) == set(SHAPES)
        for name, shape in SHAPES.items():
            assert other.shape(name) == shape
            assert torch.equal(other.tensor(name, torch.float32), plain.tensor(name, torch.float32))
    seeded = write(tmp_path / "seeded", replace(PublishedStyle(), seed=1), 1 << 20)
    assert not torch.equal(seeded.tensor(TABLE, torch.float32), plain.tensor(TABLE, torch.float32))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("block", [(4, 4), (128, 128), (5, 3)])
def test_the_fp8_model_is_the_bf16_model_within_the_formats_step(
    tmp_path: Path, packed: bool, block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.weights.synthetic._CHUNK_VALUES", 100)
    exact = write(tmp_path / "exact", PublishedStyle(), 1 << 20)
    coded = write(tmp_path / "coded", PublishedStyle(experts_are_packed=packed, fp8_block=block), 1 << 20)
    for name in SHAPES:
        is_coded = "_proj" in name
        assert coded.stored_code(name) == ("F8_E4M3" if is_coded else "BF16")
        error = (coded.tensor(name, torch.float32) - exact.tensor(name, torch.float32)).abs().max()
        assert error <= (0.07 * exact.tensor(name, torch.float32).abs().max() if is_coded else 0)


def test_integers_are_written_as_they_are(tmp_path: Path) -> None:
    name = "model.layers.1.ple.ple_embedding.layer_multipliers"
    source = write(tmp_path / "x", PublishedStyle(integers={name: (2**62 + 1, 3)}), 1 << 20)
    assert source.tensor(name, torch.float32).tolist() == [2**62 + 1, 3]


def test_each_kind_of_tensor_has_its_own_scale() -> None:
    style = PublishedStyle()

    def spread(name: str, shape: tuple[int, ...], tied: bool = False, **change: bool) -> tuple[float, float]:
        rule = rule_of(name, shape, replace(style, **change), tied)
        values = rule.apply(hash_values(key_of(name, 0), 0, 50_000))
        return float(values.mean()), float(values.std())

    for name in ("input_layernorm", "self_attn.q_norm", "attn_hyper_connection.hc_norm", "ple.norm_key"):
        assert spread(f"model.layers.0.{name}.weight", (64,)) == pytest.approx((0.0, 0.058), abs=0.002)
        assert spread(f"model.layers.0.{name}.weight", (64,), norms_are_offsets=False)[0] == pytest.approx(1, abs=0.01)
    assert spread("model.layers.0.linear_attn.norm.weight", (64,))[0] == pytest.approx(1, abs=0.01)
    assert spread("model.layers.0.mlp.gate.weight", (8, 400)) == pytest.approx((0, 1 / 20), abs=0.002)
    assert spread("model.embed_tokens.weight", (8, 400)) == pytest.approx((0, 1), abs=0.01)
    assert spread("model.embed_tokens.weight", (8, 400), tied=True)[1] == pytest.approx(1 / 20, abs=0.001)
    assert -3 < math.log(0.1) <= spread("model.layers.0.linear_attn.A_log", (4,))[0] < math.log(16)
