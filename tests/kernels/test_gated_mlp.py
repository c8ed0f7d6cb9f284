"""A dense MLP by its definition: the block's values, buffers that fit, what is refused."""

import pytest
import torch

from strata.kernels.expert_rows.reference import matrix_rows, silu_times
from strata.kernels.gated_mlp import silu_times_into
from strata.kernels.gated_mlp.reference import silu_times_into as silu_by_definition
from strata.kernels.packed_rows import multiply_into
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.models.blocks.linear import GatedMlpWeights, gated_mlp
from strata.quant.packed import PackedMatrix
from tests.kernels.random_matrices import KINDS, random_matrix, random_rows

KIND = {kind.name: kind for kind in KINDS}


def rows_of_mlp(gate_up: list[PackedMatrix], down: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    """The three launches that a window makes of a dense MLP."""
    layout = down.layout
    both = torch.empty(len(x), 2 * layout.columns)
    hidden, out = RowsOut(torch.empty(len(x), layout.columns), None), torch.empty(len(x), layout.rows)
    multiply_into(gate_up, RowsOut(x, None), both)
    silu_times_into(both, [layout], hidden)
    multiply_into([down], hidden, out)
    return out


def test_rows_are_those_of_the_matrices_one_after_another() -> None:
    gate, up = (random_matrix(seed, KIND[name].layout(32, 64)) for seed, name in enumerate(("q4_0", "q8_0")))
    down, x = random_matrix(2, KIND["q8_0"].layout(40, 32)), random_rows(3, 3, 64)
    wanted = matrix_rows(down, silu_times(matrix_rows(gate, x), matrix_rows(up, x)))
    assert torch.equal(rows_of_mlp([gate, up], down, x), wanted)


def test_values_are_those_of_the_block() -> None:
    gate_up, down = random_matrix(0, KIND["f32"].layout(24, 20)), random_matrix(1, KIND["f32"].layout(20, 12))
    x = torch.randn(2, 20, generator=torch.Generator().manual_seed(0))
    wanted = gated_mlp(x, GatedMlpWeights(gate_up.decode(), down.decode()))
    assert torch.allclose(rows_of_mlp([gate_up], down, x), wanted, rtol=1e-4, atol=1e-4)


def test_gate_and_up_may_lie_in_a_wider_matrix() -> None:
    wide, out = random_rows(4, 2, 69), torch.empty(2, 32)
    silu_by_definition(wide[:, 5:], RowsOut(out, None))
    assert torch.equal(out, silu_times(wide[:, 5:37].contiguous(), wide[:, 37:].contiguous()))


def test_gates_that_do_not_fit_are_refused() -> None:
    layout = KIND["q8_0"].layout(16, 32)
    with pytest.raises(ValueError, match="no input for 32 columns"):
        silu_times_into(torch.zeros(1, 60), [layout], RowsOut(torch.zeros(1, 32), None))
    with pytest.raises(ValueError, match="gate_up must be float32"):
        silu_times_into(torch.zeros(1, 64).double(), [layout], RowsOut(torch.zeros(1, 32), None))
    with pytest.raises(ValueError, match=r"rows must be float32 \[2, 32\]"):
        silu_times_into(torch.zeros(2, 64), [layout], RowsOut(torch.zeros(1, 32), None))
