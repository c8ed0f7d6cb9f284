"""Packed rows off the GPU: the definition is chosen, and what does not fit is refused."""

import pytest
import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows import check_rows, multiply_into, packed_rows, room_for
from strata.kernels.packed_rows.reference import packed_rows as by_definition
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from tests.kernels.random_matrices import KINDS, random_matrix, random_rows


def test_rows_in_main_memory_are_computed_by_the_definition() -> None:
    matrix, x = random_matrix(0, KINDS[2].layout(20, 64)), random_rows(1, 3, 64)
    assert torch.equal(packed_rows(matrix, x), by_definition(matrix, x))


@pytest.mark.parametrize("x", [torch.zeros(1, 32), torch.zeros(1, 64).double(), torch.zeros(64)])
def test_rows_of_another_shape_or_type_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"float32 \[n, 64\]"):
        packed_rows(random_matrix(0, KINDS[2].layout(20, 64)), x)


def test_matrices_under_one_another_are_multiplied_side_by_side() -> None:
    matrices = [random_matrix(seed, kind.layout(20, 64), 0.37) for seed, kind in enumerate((KINDS[2], KINDS[11]))]
    x, wide = random_rows(1, 3, 64), torch.full((3, 50), 7.0)
    multiply_into(matrices, RowsOut(x, None), wide[:, 10:])
    assert torch.equal(wide[:, 10:], torch.cat([by_definition(matrix, x) for matrix in matrices], dim=1))
    assert bool((wide[:, :10] == 7).all())


def test_room_for_the_definition_is_plain() -> None:
    room = room_for([KINDS[2].layout(20, 64)], 3, "cpu")
    assert room.plain is not None and room.plain.shape == (3, 64) and room.quantized is None


def test_products_that_do_not_fit_are_refused() -> None:
    matrix, x = random_matrix(0, KINDS[2].layout(20, 64)), RowsOut(torch.zeros(2, 64), None)
    with pytest.raises(ValueError, match="no matrix"):
        multiply_into([], x, torch.zeros(2, 0))
    with pytest.raises(ValueError, match=r"out must be float32 \[2, 40\]"):
        multiply_into([matrix, matrix], x, torch.zeros(2, 20))
    with pytest.raises(ValueError, match=r"rows must be float32 \[2, 64\]"):
        multiply_into([matrix], RowsOut(torch.zeros(2, 32), None), torch.zeros(2, 20))
    with pytest.raises(ValueError, match="plain rows here, which are missing"):
        multiply_into([matrix], RowsOut(None, None), torch.zeros(2, 20))
    with pytest.raises(ValueError, match="quantized rows, which are missing"):
        check_rows(matrix.layout, 2, x, is_reference=False)
    with pytest.raises(ValueError, match="4 quantized blocks, not 6"):
        quantized = Activations.empty(3, 2, torch.device("cpu"), LaunchShape())
        check_rows(matrix.layout, 2, RowsOut(None, quantized), is_reference=False)
