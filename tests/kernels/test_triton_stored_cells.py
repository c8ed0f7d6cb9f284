"""Triton's stored heads in its interpreter are those of the definition, bit for bit: `make interpreter`."""

import pytest

from strata.quant.cell_codes import CellCode
from tests.kernels import stored_cell_checks as checks
from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter


@pytest.mark.parametrize("code", CellCode)
def test_heads_are_stored_and_decoded_as_defined(code: CellCode) -> None:
    checks.check_code(code, "cpu")


def test_heads_are_rotated_as_defined() -> None:
    checks.check_rotation("cpu")


def test_levels_are_those_of_the_bytes() -> None:
    checks.check_levels("cpu")


def test_three_bfloat16_are_a_float32() -> None:
    checks.check_thirds("cpu")
