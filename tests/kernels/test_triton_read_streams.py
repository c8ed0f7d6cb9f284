"""Triton's steps between a prompt's products in its interpreter: the twin's within rounding, row by row."""

import pytest
import torch

from strata.kernels.read_streams import reference
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import random_rows
from tests.kernels.stream_cases import StreamSizes, additions, first_rows, norm_scale

pytestmark = needs_interpreter

SHAPES = (StreamSizes(rows=3, streams=4, hidden=96), StreamSizes(rows=2, streams=1, hidden=576))


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("kind", ["nothing", "mixer", "values"])
def test_streams_have_the_bits_of_the_twin_and_norms_agree(kind: str, sizes: StreamSizes) -> None:
    from strata.kernels.read_streams.triton import add_norm

    addition, streams = additions(5, sizes)[kind], random_rows(6, sizes.rows, sizes.width)
    scale, found, wanted = norm_scale(7, sizes.width), streams.clone(), streams.clone()
    out, expected = torch.empty_like(streams, dtype=torch.bfloat16), torch.empty_like(streams)
    add_norm(found, addition, scale, 1e-6, sizes.streams, out)  # type: ignore[arg-type]
    reference.add_norm(wanted, addition, scale, 1e-6, sizes.streams, expected)  # type: ignore[arg-type]
    assert torch.equal(found, wanted)
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=1e-30)  # the interpreter cuts off
    last, alone = streams[-1:].clone(), torch.empty_like(streams[-1:], dtype=torch.bfloat16)
    add_norm(last, first_rows(addition, sizes.rows - 1, sizes.rows), scale, 1e-6, sizes.streams, alone)  # type: ignore[arg-type]
    assert torch.equal(alone, out[-1:]) and torch.equal(last, found[-1:])


def test_gates_hidden_rows_and_shares_are_the_twin_s_within_rounding() -> None:
    from strata.kernels.read_streams import triton as kernels

    shares, gates, normed = random_rows(1, 3, 36), random_rows(2, 3, 384).bfloat16(), random_rows(3, 3, 384).bfloat16()
    wide, x, gate = random_rows(4, 3, 200)[:, 40:168], random_rows(5, 3, 96).bfloat16(), random_rows(6, 1, 96)[0]
    made = []
    for road in (kernels, reference):
        low, strengths = torch.empty(3, 32, dtype=torch.bfloat16), torch.empty(3, 4)
        mixed, hidden = torch.empty(3, 96, dtype=torch.bfloat16), torch.empty(3, 64, dtype=torch.bfloat16)
        of_rows = torch.empty(3)
        road.low_gates(shares, 4, low, strengths)
        road.mix_streams(gates, normed, 4, mixed)
        road.gated_hidden(wide, hidden)
        road.gate_shares(x, gate, of_rows)
        made.append((low, strengths, mixed, hidden, of_rows))
    for found, wanted in zip(*made, strict=True):
        close = {"rtol": 2**-7, "atol": 1e-5} if found.dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(found.float(), wanted.float(), **close)
