"""Activations of narrow tensors: torch's values, and bits that do not depend on the number of values."""

import torch
import torch.nn.functional as F

from strata.models.blocks.activations import narrow_sigmoid, narrow_softplus


def test_values_are_torchs() -> None:
    x = torch.cat((torch.randn(100, dtype=torch.float64) * 5, torch.tensor([-800.0, -40.0, 0.0, 40.0, 800.0]).double()))
    assert (narrow_sigmoid(x) - torch.sigmoid(x)).abs().max() < 1e-14
    assert (narrow_softplus(x) - F.softplus(x, threshold=500.0)).abs().max() < 1e-12


def test_a_value_has_the_same_bits_in_any_company() -> None:
    x = torch.randn(200) * 3
    for function in (narrow_sigmoid, narrow_softplus):
        together = function(x)
        for count in (1, 3, 4, 17, 33):
            assert torch.equal(function(x[5 : 5 + count].clone()), together[5 : 5 + count])
