"""Triton's adding to residual streams in its interpreter: sums of the twin's bits, norms within rounding."""

import pytest
import torch

from strata.kernels.expert_rows.reference import quantize_rows
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.residual_streams import Nothing, reference
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import random_rows
from tests.kernels.stream_cases import StreamSizes, additions, first_rows, norm_scale, room

pytestmark = needs_interpreter

CPU = torch.device("cpu")
SHAPES = (
    StreamSizes(rows=3, streams=4, hidden=64, ranks=3),
    StreamSizes(rows=2, streams=1, hidden=576, ranks=2),  # two chunks, of which the second is not full
    StreamSizes(rows=1, streams=2, hidden=1024, ranks=10),
)
KINDS = tuple(additions(0, SHAPES[0]))


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_have_the_bits_of_the_twin_and_norms_agree(kind: str, sizes: StreamSizes) -> None:
    from strata.kernels.residual_streams.triton import add_and_norm

    addition, streams = additions(5, sizes)[kind], random_rows(6, sizes.rows, sizes.width)
    expected, scale = streams.clone(), norm_scale(7, sizes.width)
    out, wanted = room(sizes.rows, sizes.width, CPU, True, True), room(sizes.rows, sizes.width, CPU)
    add_and_norm(streams, addition, scale, 1e-6, sizes.streams, out)
    reference.add_and_norm(expected, addition, scale, 1e-6, sizes.streams, wanted)
    assert torch.equal(streams.view(torch.int32), expected.view(torch.int32))
    assert out.plain is not None and wanted.plain is not None
    torch.testing.assert_close(out.plain, wanted.plain, rtol=2e-6, atol=1e-30)
    assert_quantized(out)


def assert_quantized(out: RowsOut) -> None:
    """The quantized rows are those of the plain ones."""
    from strata.kernels.packed_rows.activations import quantize_rows as quantize_on_gpu

    assert out.plain is not None and out.quantized is not None
    wanted = quantize_on_gpu(out.plain, LaunchShape())
    assert torch.equal(out.quantized.values, wanted.values)
    assert torch.equal(out.quantized.records, wanted.records)
    assert quantize_rows(out.plain).q.abs().max() == 127


def test_a_row_does_not_know_its_neighbours() -> None:
    from strata.kernels.residual_streams.triton import add_and_norm

    sizes = SHAPES[0]
    streams, addition = random_rows(1, 3, sizes.width), additions(2, sizes)["experts and gated"]
    scale, together, alone = norm_scale(3, sizes.width), room(3, sizes.width, CPU), room(1, sizes.width, CPU)
    last = streams[2:].clone()
    add_and_norm(streams, addition, scale, 1e-6, sizes.streams, together)
    add_and_norm(last, first_rows(addition, 2, 3), scale, 1e-6, sizes.streams, alone)
    assert torch.equal(last, streams[2:])
    assert together.plain is not None and alone.plain is not None and torch.equal(alone.plain, together.plain[2:])


def test_quantized_rows_lie_where_the_matrix_units_read_them() -> None:
    from strata.kernels.residual_streams.triton import add_and_norm

    streams, scale = random_rows(1, 3, 256), norm_scale(2, 256)
    by_row, side_by_side = (
        Activations.empty(3, 8, CPU, LaunchShape(rows=8, uses_matrix_units=unit)) for unit in (False, True)
    )
    for made in (by_row, side_by_side):
        add_and_norm(streams.clone(), Nothing(), scale, 1e-6, 4, RowsOut(None, made))
    assert torch.equal(by_row.values.reshape(3, 8, 4), side_by_side.values.reshape(8, 3, 4).transpose(0, 1))
    assert torch.equal(by_row.records.reshape(3, 8), side_by_side.records.reshape(8, 3).transpose(0, 1))
