"""A packed matrix as one run of bytes, for tests: what is compared, and what is moved to a device."""

import torch

from strata.quant.packed import PackedMatrix, view_matrix


def to_buffer(matrix: PackedMatrix) -> torch.Tensor:
    """All arrays in one new uint8 buffer, at the places that the layout says."""
    buffer = torch.zeros(matrix.layout.total_bytes, dtype=torch.uint8)
    view_matrix(matrix.layout, buffer, matrix.layout.places(), matrix.post_scale).copy_arrays_from(matrix)
    return buffer
