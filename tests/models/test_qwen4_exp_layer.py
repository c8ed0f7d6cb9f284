"""One layer of qwen4_exp by itself: its parts' order, its state, and reads against windows."""

import pytest
import torch

from strata.models.blocks.moe import moe
from strata.models.blocks.residual_streams import read_streams, write_streams
from strata.models.blocks.rotary import rotation_at
from strata.models.mixers.base import RowsInfo
from strata.models.qwen4_exp_layer import Qwen4ExpLayer
from tests.models.tiny_qwen4_exp import tiny_model, tiny_text

ROWS = 40


def rows_info(rows: int) -> RowsInfo:
    model, positions = tiny_model(torch.float64), torch.arange(rows)
    return RowsInfo(tiny_text(rows), positions, rotation_at(positions, model.frequencies, torch.float64), ((0, rows),))


@pytest.mark.parametrize("index", [0, 1])
def test_a_layer_is_its_parts_in_order(index: int) -> None:
    layer: Qwen4ExpLayer = tiny_model(torch.float64).layers[index]
    x, info = torch.randn(ROWS, 128, dtype=torch.float64), rows_info(ROWS)
    expected = x if layer.ngram is None else x + layer.ngram.read(x, info, layer.ngram.new_state())
    for residual, part in (
        (layer.mixer_residual, lambda mixed: layer.mixer.read(mixed, info, layer.mixer.new_state())),
        (layer.moe_residual, lambda mixed: moe(mixed, layer.moe_weights, layer.moe_shape)),
    ):
        mixed, strengths = read_streams(expected, residual)
        expected = write_streams(expected, part(mixed), strengths)
    assert torch.equal(layer.read(x, info, layer.new_state()), expected)


@pytest.mark.parametrize("index", [0, 1])
def test_a_window_gives_the_rows_of_a_read_and_commits_them(index: int) -> None:
    layer: Qwen4ExpLayer = tiny_model(torch.float64).layers[index]
    x, info = torch.randn(ROWS, 128, dtype=torch.float64), rows_info(ROWS)
    read_state, window_state = layer.new_state(), layer.new_state()
    expected = layer.read(x, info, read_state)
    found, pending = layer.window(x, info, [window_state])
    assert (found - expected).abs().max() < 1e-12
    layer.commit(pending, 0, window_state, ROWS)
    assert window_state.bytes_used() == read_state.bytes_used()
    copy = window_state.clone()
    assert copy is not window_state and copy.bytes_used() == window_state.bytes_used()
