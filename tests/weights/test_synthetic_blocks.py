"""Random blocks: their weights' spread is that of a model's, whatever the type and however they are cut."""

import math

import numpy as np
import pytest
import torch

from strata.errors import SettingsError
from strata.quant.formats import by_name
from strata.weights import synthetic_blocks
from strata.weights.gguf_types import TYPE_OF_NAME
from strata.weights.synthetic_blocks import check_block_type, random_blocks


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_weights_have_the_variance_of_one_over_columns(name: str) -> None:
    data = np.concatenate(list(random_blocks("a", TYPE_OF_NAME[name], (256, 512), seed=3)))
    values = by_name(name).to_packed(data.reshape(256, -1), 256, 512).decode()
    assert float(values.std()) == pytest.approx(1 / math.sqrt(512), rel=0.05)
    assert torch.isfinite(values).all()


def test_a_tensor_comes_in_pieces_of_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_blocks, "_CHUNK_BYTES", 1000)
    pieces = list(random_blocks("a", TYPE_OF_NAME["Q8_0"], (64, 64), seed=0))
    assert len(pieces) == 5
    assert all(piece.size % 34 == 0 for piece in pieces)
    assert sum(piece.size for piece in pieces) == 64 * 64 // 32 * 34


def test_only_types_that_random_bytes_fill_are_taken() -> None:
    assert check_block_type("dense-type", "q8_0") == "Q8_0"
    with pytest.raises(SettingsError, match="--dense-type MXFP4 does not work"):
        check_block_type("dense-type", "MXFP4")
