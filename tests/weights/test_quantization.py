"""Only block FP8 is read; every other way to quantize is refused by name."""

from typing import Any

import pytest

from strata.errors import ConfigError
from strata.weights.quantization import read_weight_block
from tests.weights.model_files import fp8_config


def test_the_block_is_found_outside_or_inside_the_text_config() -> None:
    assert read_weight_block({}) is None
    assert read_weight_block({"text_config": {}}) is None
    assert read_weight_block(fp8_config(128, 64)) == (128, 64)
    assert read_weight_block({"text_config": fp8_config(1, 7)}) == (1, 7)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, "'gptq' is not supported"),
        ({"quant_method": "compressed-tensors"}, "'compressed-tensors' is not supported"),
        ({}, "quant_method = 'None'"),
        ("fp8", "must be a JSON object"),
        ({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]}, "fmt = 'e5m2'"),
        ({"quant_method": "fp8"}, "weight_block_size = None"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [True, 128]}, "weight_block_size"),
    ],
)
def test_other_methods_are_refused_by_name(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_weight_block({"quantization_config": settings})
