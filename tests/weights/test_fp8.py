"""Block FP8 decodes as weight times the scale of its block, also at ragged edges."""

import pytest
import torch

from strata.weights.fp8 import MAX_FP8, decode_blocks, decode_rows, encode_blocks, scale_shape

CASES = [((8, 8), (4, 4)), ((7, 10), (4, 3)), ((3, 5), (128, 128)), ((2, 9, 6), (2, 4)), ((5, 1), (1, 7))]


def plain_decode(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """One value after the other, in float64."""
    out = torch.empty(weight.shape, dtype=torch.float64)
    for index in torch.cartesian_prod(*[torch.arange(size) for size in weight.shape]).tolist():
        *lead, row, column = index
        its_scale = scale[(*lead, row // block[0], column // block[1])]
        out[tuple(index)] = weight[tuple(index)].double() * its_scale.double()
    return out


@pytest.mark.parametrize(("shape", "block"), CASES)
def test_decoding_is_weight_times_scale_of_its_block(shape: tuple[int, ...], block: tuple[int, int]) -> None:
    torch.manual_seed(1)
    weight = (torch.randn(shape) * 50).to(torch.float8_e4m3fn)
    scale = torch.rand(scale_shape(shape, block)) + 0.1
    expected = plain_decode(weight, scale, block)
    assert torch.equal(decode_blocks(weight, scale, block), expected.float())


@pytest.mark.parametrize(("shape", "block"), CASES)
def test_what_was_encoded_comes_back_within_the_formats_step(shape: tuple[int, ...], block: tuple[int, int]) -> None:
    torch.manual_seed(2)
    weight = torch.randn(shape)
    coded, scale = encode_blocks(weight, block)
    assert coded.shape == weight.shape
    assert scale.shape == scale_shape(shape, block)
    error = (decode_blocks(coded, scale, block) - weight).abs()
    step = scale.max() * MAX_FP8 / 16  # three bits of mantissa: half a step is 1/16 of the value
    assert error.max() <= step
    assert (error <= weight.abs() / 16 + scale.max() / 512).all()


def test_a_block_of_zeros_stays_zero() -> None:
    coded, scale = encode_blocks(torch.zeros(4, 4), (2, 2))
    assert decode_blocks(coded, scale, (2, 2)).abs().max() == 0


def test_single_rows_decode_as_in_the_whole() -> None:
    torch.manual_seed(3)
    coded, scale = encode_blocks(torch.randn(11, 6), (4, 4))
    whole = decode_blocks(coded, scale, (4, 4))
    rows = torch.tensor([10, 0, 5, 5])
    assert torch.equal(decode_rows(coded.view(torch.uint8)[rows].view(coded.dtype), scale, (4, 4), rows), whole[rows])
