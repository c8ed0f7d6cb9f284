"""Quantizing at load: what code4 and code8 cost in accuracy, and what cannot be quantized stays as it is."""

import pytest
import torch

from strata.quant.at_load import CHOICES, format_for, quantize_matrix, quantized_layout
from strata.quant.layout import Code


@pytest.mark.parametrize(("choice", "code", "worst"), [("code4", Code.CODE4, 0.078), ("code8", Code.CODE8, 0.0055)])
def test_error_of_a_choice(choice: str, code: Code, worst: float) -> None:
    values = torch.randn(96, 640, generator=torch.Generator().manual_seed(0)).mul(0.02).bfloat16()
    packed = quantize_matrix(values, choice)
    assert packed.layout == quantized_layout(choice, 96, 640)
    assert packed.layout.code is code
    error = (packed.decode() - values.float()).norm() / values.float().norm()
    assert error <= worst


def test_columns_that_are_no_blocks_stay_floats() -> None:
    values = torch.randn(8, 40)
    for choice in CHOICES:
        assert torch.equal(quantize_matrix(values, choice).decode(), values)
        kept = quantize_matrix(values.bfloat16(), choice)
        assert torch.equal(kept.decode(), values.bfloat16().float())
        assert kept.layout.code is Code.BF16
        assert format_for(choice, 64, is_bf16=True) is CHOICES[choice]


def test_rows_do_not_depend_on_the_pieces_in_which_they_are_quantized() -> None:
    values = torch.randn(700, 512)  # more than one piece
    whole = quantize_matrix(values, "code4").decode()
    assert torch.equal(whole[650:], quantize_matrix(values[650:], "code4").decode())
