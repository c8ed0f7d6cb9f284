"""Packed rows off the GPU: the definition is chosen, and wrong rows are refused."""

import pytest
import torch

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
