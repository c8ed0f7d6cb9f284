"""strata.kernels.division in Triton's interpreter has the bits of its own division: `make interpreter`."""

import pytest
import torch

from tests.kernels.division_cases import BLOCK, check_division
from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter


def test_quotients_have_the_bits_of_a_division() -> None:
    check_division(torch.device("cpu"), 64 * BLOCK)


@pytest.mark.parametrize("unit", [-1, 1])
def test_a_reciprocal_a_unit_off_gives_the_same_quotient(unit: int) -> None:
    # What a GPU's near reciprocal may be; the steps of strata.kernels.division in float64 with roundings to odd.
    from strata.kernels.expert_rows.reference import fma

    generator = torch.Generator().manual_seed(unit)
    a, b = 1 + torch.rand(2, 1 << 16, generator=generator)
    near = ((1 / b).view(torch.int32) + unit).view(torch.float32)
    near = fma(near, fma(-b, near, torch.ones_like(b)), near)
    quotient = a * near
    assert torch.equal(fma(near, fma(-b, quotient, a), quotient), a / b)
