"""Blocks quantized where a kernel made them have the bits and places of quantized rows, in Triton's interpreter."""

import pytest
import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import random_rows

pytestmark = needs_interpreter


@pytest.mark.parametrize("launch", [LaunchShape(), LaunchShape(rows=8, uses_matrix_units=True)], ids=["rows", "units"])
def test_blocks_have_the_bits_and_places_of_quantized_rows(launch: LaunchShape) -> None:
    from strata.kernels.packed_rows.activations import quantize_rows
    from tests.kernels.triton_probes import blocks_out_kernel

    x = random_rows(7, 2, 32 * 11)
    x[0, :32] = torch.arange(-16, 16) + 0.5  # ties
    x[0, 31] = 127.0
    x[1, 32:64] = 0.0
    wanted = quantize_rows(x, launch)
    made = Activations.empty(2, 11, x.device, launch)
    made.values.fill_(-1)
    made.records.fill_(-1)
    blocks_out_kernel[(2,)](x, *made.arguments, 11, BLOCKS=16)
    assert torch.equal(made.values, wanted.values)
    assert torch.equal(made.records, wanted.records)
