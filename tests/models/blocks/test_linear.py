"""Linear maps: a window's row does not feel how many rows share the call."""

import pytest
import torch
import torch.nn.functional as F

from strata.models.blocks import linear as module
from strata.models.blocks.linear import GatedMlpWeights, gated_mlp, linear


@pytest.mark.parametrize("rows", [1, 2, 5, 32, 33, 64])
def test_linear_is_the_product_with_the_transposed_weight(rows: int) -> None:
    x, weight = torch.randn(rows, 12, dtype=torch.float64), torch.randn(7, 12, dtype=torch.float64)
    assert (linear(x, weight) - x @ weight.t()).abs().max() < 1e-13


def test_large_weights_are_taken_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(3, 64), torch.randn(100, 64)
    whole = linear(x, weight)
    monkeypatch.setattr(module, "CACHED_BYTES", 32 * 64 * 4)
    assert (linear(x, weight) - whole).abs().max() < 1e-5


@pytest.mark.parametrize("shape", [(64, 256), (1024, 64), (1000, 1024)])
def test_a_windows_row_has_the_same_bits_alone_and_beside_others(shape: tuple[int, int]) -> None:
    x, weight = torch.randn(32, shape[1]), torch.randn(shape)
    together = linear(x, weight)
    for row in (0, 1, 7, 31):
        assert torch.equal(linear(x[row : row + 1].clone(), weight)[0], together[row])


def test_gated_mlp_is_down_of_silu_gate_times_up() -> None:
    x, gate, up = (torch.randn(5, 6, dtype=torch.float64) for _ in range(3))
    down = torch.randn(6, 5, dtype=torch.float64)
    expected = (F.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    assert (gated_mlp(x, GatedMlpWeights(torch.cat((gate, up)), down)) - expected).abs().max() < 1e-12
