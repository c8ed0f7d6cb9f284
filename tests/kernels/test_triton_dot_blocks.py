"""Lanes are added in the order of the definition, and blocks side by side come apart in theirs, in the interpreter.

Whole products by strata.kernels.packed_rows.dot_blocks are compared bit by bit in test_triton_packed_rows.
"""

import pytest
import torch

from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import random_rows

pytestmark = needs_interpreter


@pytest.mark.parametrize("side", [1, 2, 4])
def test_parts_come_from_the_top_and_their_lanes_are_added_as_defined(side: int) -> None:
    from tests.kernels.triton_row_probes import parts_kernel

    x = random_rows(3, 8 * side, 4)
    out = torch.full((side, 4), float("nan"))
    parts_kernel[(1,)](x, out, SIDE=side)
    four = x.view(side, 2, 4, 4).sum(dim=1)  # lane i plus lane i + 4: two numbers, one rounding
    two = four.view(side, 2, 2, 4).sum(dim=1)
    assert torch.equal(out, two[:, 0] + two[:, 1])
