"""A blob holds its three matrices bit for bit, at the places that docs/storage-codes.md says."""

import pytest
import torch

from strata.experts.blob import ExpertBlob, ExpertMatrices, layout_of, view_blob, write_blob
from strata.quant.layout import Array
from tests.experts.experts import random_expert, random_matrix

KINDS = [("Q4_0", "Q8_0"), ("Q4_K", "Q5_1"), ("Q2_0", "Q2_0"), ("NVFP4", "NVFP4"), ("BF16", "Q4_0"), ("Q6_K", "F16")]


def make_blob(matrices: ExpertMatrices) -> ExpertBlob:
    """A blob of its own in new memory."""
    layout = layout_of(matrices)
    buffer = torch.zeros(layout.total_bytes, dtype=torch.uint8)
    write_blob(layout, buffer, matrices)
    return view_blob(layout, buffer)


@pytest.mark.parametrize(("inner", "outer"), KINDS)
def test_matrices_come_back(inner: str, outer: str) -> None:
    matrices = random_expert(inner, outer)
    blob = make_blob(matrices)
    assert blob.buffer.numel() % 256 == 0
    for found, wanted in zip(blob.matrices, matrices, strict=True):
        assert found.layout == wanted.layout
        assert found.post_scale == wanted.post_scale
        assert torch.equal(found.decode(), wanted.decode())


def test_codes_lie_first_and_post_scales_last() -> None:
    gate, up = (random_matrix("NVFP4", 64, 128, seed, post_scale=1 + seed) for seed in (0, 1))
    down = random_matrix("Q4_0", 128, 64, 2)
    blob = make_blob((gate, up, down))
    codes = [gate.codes, up.codes, down.codes]
    assert torch.equal(blob.buffer[: sum(each.numel() for each in codes)], torch.cat(codes))
    place = blob.layout.post_scales
    factors = blob.buffer[place.offset : place.offset + place.size].view(torch.float32)
    assert factors.tolist() == [0.5, 1.0, 1.0]


def test_matrices_are_views_of_the_blob() -> None:
    blob = make_blob(random_expert())
    begin, end = blob.buffer.data_ptr(), blob.buffer.data_ptr() + blob.buffer.numel()
    for matrix in blob.matrices:
        for array in Array:
            found = matrix.array(array)
            assert found.numel() == 0 or (begin <= found.data_ptr() < end and (found.data_ptr() - begin) % 64 == 0)


def test_a_buffer_of_another_size_and_another_matrix_are_refused() -> None:
    matrices = random_expert()
    layout = layout_of(matrices)
    with pytest.raises(ValueError, match="a blob takes"):
        view_blob(layout, torch.zeros(layout.total_bytes + 256, dtype=torch.uint8))
    other = random_expert("Q4_0", "Q4_0")
    with pytest.raises(ValueError, match="does not go into"):
        write_blob(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8), other)
