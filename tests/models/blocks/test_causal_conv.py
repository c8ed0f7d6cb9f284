"""The short convolution against transformers' function and, dilated, against torch's convolution."""

import torch
import torch.nn.functional as F
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

from strata.models.blocks.causal_conv import convolve, tail_rows


def test_convolution_is_theirs() -> None:
    x, taps = torch.randn(9, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    expected = theirs.causal_conv1d_fn(x.t()[None], taps.t().contiguous(), activation="silu")[0].t()
    extended = torch.cat((x.new_zeros(tail_rows(4), 5), x))
    assert (convolve(extended, taps) - expected).abs().max() < 1e-13


def test_dilated_convolution_is_torchs() -> None:
    tail, x, taps = (torch.randn(n, 6, dtype=torch.float64) for n in (tail_rows(3, 2), 7, 3))
    extended = torch.cat((tail, x))
    expected = F.silu(F.conv1d(extended.t()[None], taps.t().unsqueeze(1), groups=6, dilation=2))[0].t()
    assert (convolve(extended, taps, 2) - expected).abs().max() < 1e-13


def test_one_tap_needs_no_tail() -> None:
    x, taps = torch.randn(3, 4), torch.randn(1, 4)
    assert tail_rows(1) == 0
    assert torch.equal(convolve(x, taps), F.silu(x * taps[0]))
