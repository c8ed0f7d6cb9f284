"""Packed rows off the GPU: the definition is chosen, wrong rows are refused, and no launch shape is out of bounds."""

import pytest
import torch

from strata.kernels.configurations import MOST_ROWS_AT_ONCE, expert_launch, packed_launch, rows_at_once
from strata.kernels.packed_rows import packed_rows
from strata.kernels.packed_rows.reference import packed_rows as by_definition
from tests.kernels.random_matrices import KINDS, random_matrix, random_rows


def test_rows_in_main_memory_are_computed_by_the_definition() -> None:
    matrix, x = random_matrix(0, KINDS[2].layout(20, 64)), random_rows(1, 3, 64)
    assert torch.equal(packed_rows(matrix, x), by_definition(matrix, x))


@pytest.mark.parametrize("x", [torch.zeros(1, 32), torch.zeros(1, 64).double(), torch.zeros(64)])
def test_rows_of_another_shape_or_type_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"float32 \[n, 64\]"):
        packed_rows(random_matrix(0, KINDS[2].layout(20, 64)), x)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 32])
def test_rows_at_once_are_a_power_of_two_that_is_just_enough(rows: int) -> None:
    at_once = rows_at_once(rows)
    assert at_once & (at_once - 1) == 0
    assert at_once == MOST_ROWS_AT_ONCE or at_once >= rows > at_once // 2
    layout = KINDS[0].layout(16, 64)
    assert packed_launch(layout, rows).rows == expert_launch(layout, rows).rows == at_once
