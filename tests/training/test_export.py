"""What the trainer writes is what the package reads. Knows a model of a tiny shape; knows no training."""

from pathlib import Path

import pytest
import torch

from strata.models.base import LogitRows, Segment
from strata.models.families import family_of
from strata.weights.safetensors import open_model
from strata.weights.source import MemorySource
from training.export import (
    BLOCK,
    FP8_MAX,
    is_quantized,
    load_resume,
    pieces,
    quantized,
    rounded,
    save_model,
    save_resume,
)
from training.language import PocketModel
from training.recipe import PocketShape

TINY = PocketShape(
    vocabulary_size=128,
    hidden=64,
    layer_kinds="LA",
    delta_key_heads=1,
    delta_value_heads=2,
    attention_heads=2,
    num_experts=4,
    experts_per_token=2,
    ngram_layer=0,
    heads_per_ngram=1,
    ngram_base=61,
)


@pytest.fixture(scope="module")
def model() -> PocketModel:
    torch.manual_seed(1)
    return PocketModel(TINY)


def test_rounded_weights_are_codes_times_scales() -> None:
    weight = torch.randn(3, 2 * BLOCK, 3 * BLOCK, generator=torch.Generator().manual_seed(0))
    weight[0, :BLOCK, :BLOCK] = 0  # a block of zeros stays one
    codes, scales = quantized(weight)
    assert codes.dtype == torch.float8_e4m3fn and scales.shape == (3, 2, 3)
    for expert, row, column in [(0, 0, 0), (1, 1, 2), (2, 0, 1)]:
        block = (expert, slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK))
        assert torch.equal(codes[block].float() * scales[expert, row, column], rounded(weight)[block])
        if weight[block].any():
            assert codes[block].float().abs().max() == FP8_MAX
    assert (rounded(weight) - weight).abs().max() <= weight.abs().max() / 28  # e4m3: half a step of 1/8 to 1/16
    again, _ = quantized(rounded(weight))
    assert torch.equal(again.view(torch.uint8), codes.view(torch.uint8))


def test_saved_files_hold_the_rounded_weights(model: PocketModel, tmp_path: Path) -> None:
    tensors = {name: tensor.detach() for name, tensor in model.hub_tensors().items()}
    save_model(tmp_path, TINY, tensors)
    source = open_model(tmp_path)
    family = family_of(source.config)
    config = family.parse_config(source.config)
    assert set(family.expected_tensors(config)) <= set(source.names()) == set(tensors)
    expected = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            kept = rounded(tensor) if is_quantized(name, tensor) else tensor.to(torch.bfloat16).float()
            expected[name] = kept
            assert torch.equal(source.tensor(name, torch.float32), kept), name
            assert source.stored_code(name) == ("F8_E4M3" if is_quantized(name, tensor) else "BF16"), name
    tokens = torch.arange(90) % TINY.vocabulary_size
    logits = []
    for weights in (source, MemorySource(expected)):
        served = family.load(config, weights, torch.float32)
        logits.append(served.read([Segment(served.new_state(), tokens)], LogitRows.ALL).logits)
    assert torch.equal(*logits)


def test_a_state_to_resume_from_comes_back_in_bf16(model: PocketModel, tmp_path: Path) -> None:
    save_resume(tmp_path, dict(model.named_parameters()), {"tokens_done": 7})
    weights, facts = load_resume(tmp_path)
    assert facts == {"tokens_done": 7}
    for name, parameter in model.named_parameters():
        assert torch.equal(weights[name], parameter.detach().to(torch.bfloat16)), name


def test_pieces_stay_below_their_limit_and_in_order() -> None:
    tensors = {str(i): torch.zeros(size) for i, size in enumerate((10, 20, 5, 30, 1))}
    groups = list(pieces(tensors, limit=120))
    assert [list(group) for group in groups] == [["0", "1"], ["2"], ["3"], ["4"]]
