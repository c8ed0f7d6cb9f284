"""Triton's gates over residual streams in its interpreter have the bits of the twin, in every code of `up`."""

import pytest
import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.stream_gates import GatesOut, reference
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import KINDS, Kind, random_matrix, random_rows
from tests.kernels.stream_cases import room, room_for_gates

pytestmark = needs_interpreter

CPU = torch.device("cpu")
KIND = {kind.name: kind for kind in KINDS}


def shares_of(seed: int, rows: int, low_rank: int, streams: int) -> torch.Tensor:
    """Values for which silu and sigmoid are neither 0 nor 1, and one of each that is."""
    values = 6 * torch.randn(rows, low_rank + streams, generator=torch.Generator().manual_seed(seed))
    values[0, :2] = torch.tensor([1e4, -1e4])
    return values


def bits(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.view(torch.int32)


def run_both(kind: Kind, low_rank: int, rows: int, streams: int) -> tuple[GatesOut, GatesOut]:
    """Of Triton and of the twin, for 32 columns a stream."""
    from strata.kernels.stream_gates.triton import stream_gates

    up = random_matrix(1, kind.layout(streams * 32, low_rank), post_scale=0.37)
    normed, shares = random_rows(2, rows, streams * 32), shares_of(3, rows, low_rank, streams)
    found = room_for_gates(rows, streams, up, CPU, both=True)
    wanted = GatesOut(room(rows, low_rank, CPU), room(rows, 32, CPU), torch.empty(rows, streams))
    stream_gates(shares, normed, up, streams, found)
    reference.stream_gates(shares, normed, up, streams, wanted)
    return found, wanted


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_code_has_the_bits_of_the_twin(kind: Kind) -> None:
    from strata.kernels.packed_rows.activations import quantize_rows

    # 10 blocks as in the published model: lanes with two blocks and lanes with one.
    low_rank = 45 if kind.step == 1 else 512 if kind.step == 256 else 320
    found, wanted = run_both(kind, low_rank, rows=3, streams=4)
    assert torch.equal(bits(found.mixed.plain), bits(wanted.mixed.plain))
    assert torch.equal(bits(found.strengths), bits(wanted.strengths))
    assert wanted.mixed.plain is not None and found.mixed.quantized is not None
    quantized = quantize_rows(wanted.mixed.plain, LaunchShape())
    assert torch.equal(found.mixed.quantized.values, quantized.values)
    assert torch.equal(found.mixed.quantized.records, quantized.records)


@pytest.mark.parametrize("kind", [KIND["q4_0"], KIND["f32"]], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("rows", "streams"), [(1, 1), (9, 2), (2, 3)])
def test_other_counts_too(kind: Kind, rows: int, streams: int) -> None:
    found, wanted = run_both(kind, 32, rows, streams)
    assert torch.equal(bits(found.mixed.plain), bits(wanted.mixed.plain))
    assert torch.equal(bits(found.strengths), bits(wanted.strengths))


def test_the_product_has_the_bits_of_packed_rows() -> None:
    from strata.kernels.packed_rows.triton import packed_rows
    from strata.kernels.stream_gates.triton import stream_gates

    up, shares, normed = random_matrix(4, KIND["iq4_xs"].layout(64, 256)), shares_of(5, 2, 256, 1), torch.ones(2, 64)
    found = room_for_gates(2, 1, up, CPU)
    stream_gates(shares, normed, up, 1, found)
    low = torch.empty(2, 256)
    reference.stream_gates(shares, normed, up, 1, GatesOut(RowsOut(low, None), room(2, 64, CPU), torch.empty(2, 1)))
    assert torch.equal(bits(found.mixed.plain), bits(reference.sigmoid(packed_rows(up, low))))


@pytest.mark.parametrize("levels", [3, 4])
def test_lanes_of_tiles_are_added_by_the_tree(levels: int) -> None:
    from tests.kernels.triton_probes import lanes_of_tiles_kernel

    lanes, out = random_rows(4, 2 << levels, 16).reshape(2, 1 << levels, 16), torch.empty(2, 16)
    lanes_of_tiles_kernel[(1,)](lanes, out, TILES=2, LEVELS=levels)
    while lanes.shape[1] > 1:
        low, high = lanes.chunk(2, dim=1)
        lanes = low + high
    assert torch.equal(bits(out), bits(lanes[:, 0].contiguous()))


def test_room_of_the_wrong_form_is_refused() -> None:
    from strata.kernels.stream_gates.triton import stream_gates

    up, normed = random_matrix(1, KIND["q8_0"].layout(128, 32)), torch.zeros(1, 128)
    out = GatesOut(room(1, 32, CPU), room(1, 32, CPU), torch.empty(1, 4))
    with pytest.raises(ValueError, match=r"out\.low must be quantized rows"):
        stream_gates(torch.zeros(1, 36), normed, up, 4, out)
