"""Cells in C++ are stored in the definition's bits, whatever the heads hold; what cannot be stored is refused."""

import pytest
import torch

from strata.errors import EngineError
from strata.native import library, mixers
from strata.quant.cell_codes import HEAD_DIMS, CellCode, CellRows, encode, rotate
from tests.quant.hard_heads import hard_heads

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


def encoded(code: CellCode, heads: torch.Tensor) -> CellRows:
    rows = CellRows.zeros(code, *heads.shape[:-1], head_dim=heads.shape[-1])
    mixers.encode_cells(code.value, heads, rows.codes, rows.scales)
    return rows


def many_heads(head_dim: int) -> torch.Tensor:
    """float32 [heads, head_dim]: special ones, and random ones of every size that float32 and the scales know."""
    generator = torch.Generator().manual_seed(head_dim)
    sizes = 2.0 ** torch.arange(-149, 128, 3, dtype=torch.float64)
    spread = torch.randn(len(sizes), head_dim, generator=generator, dtype=torch.float64).clamp(-1.9, 1.9)
    outliers = torch.randn(64, head_dim, generator=generator)
    outliers[torch.arange(64), torch.arange(64) % head_dim] *= 1e4
    # values on the ties of the levels: a scale of exactly 1 (CODE8) when the largest is 127
    ties = torch.arange(head_dim).remainder(254).sub(127) + 0.5
    ties[0] = 127
    return torch.cat((hard_heads(head_dim), (spread * sizes[:, None]).float(), outliers, ties[None]))


@pytest.mark.parametrize("code", CellCode)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_codes_and_scales_have_the_bits_of_the_definition(code: CellCode, head_dim: int) -> None:
    heads = many_heads(head_dim)
    if code.is_rotated:
        heads = heads[rotate(heads).isfinite().all(dim=1)]  # the sums of the largest are not
    found, expected = encoded(code, heads), encode(code, heads)
    assert torch.equal(found.codes.view(torch.uint8), expected.codes.view(torch.uint8))
    assert (found.scales is None) == (expected.scales is None)
    if found.scales is not None and expected.scales is not None:
        assert torch.equal(found.scales.view(torch.int16), expected.scales.view(torch.int16))


@pytest.mark.parametrize("head_dim", [1, 8, 80, 96, 200])
def test_bfloat16_takes_heads_of_any_size(head_dim: int) -> None:
    heads = torch.randn(5, 3, head_dim) * 1e4
    assert torch.equal(encoded(CellCode.BF16, heads).codes, heads.bfloat16())


@pytest.mark.parametrize("code", CellCode)
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_heads_that_are_not_finite_do_no_harm(code: CellCode, broken: float) -> None:
    heads = torch.randn(3, 128)
    heads[1, 70] = broken
    found, expected = encoded(code, heads), encode(code, heads)
    for row in (0, 2):
        assert torch.equal(found.codes[row], expected.codes[row])
    if not code.has_scales:
        assert not found.codes[1].isfinite().all()


def test_what_cannot_be_stored_is_refused() -> None:
    codes, scales = torch.zeros(4096, dtype=torch.uint8), torch.zeros(64, dtype=torch.float16)
    for code in ("code8", "code4"):
        with pytest.raises(EngineError, match="heads of 96 values; 32, 64, 128 and 256 work"):
            mixers.encode_cells(code, torch.zeros(2, 96), codes, scales)
