"""The torch road with the C++ library's products in place of the definition's, for tests of what is built on them.

The definition computes every fma in float64: nine tenths of the time of a tiny stage. That the library has its bits is
seen for every code in tests/kernels/test_native_rows, and for whole stages in tests/engine/test_library_products.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from strata.kernels.expert_rows import reference, reference_window
from strata.kernels.gated_mlp import reference as gated_mlp
from strata.kernels.packed_rows import reference as packed_rows
from strata.kernels.packed_rows.native import native_matrix
from strata.kernels.read_experts import reference as read_experts
from strata.kernels.stream_gates import reference as stream_gates
from strata.native import library, matrices
from strata.native.pool import Pool
from strata.quant.packed import PackedMatrix
from tests.native_silu import silu_mul

_MULTIPLY = (reference, packed_rows)
_ACTIVATE = (reference, reference_window, gated_mlp, read_experts, stream_gates)


@contextmanager
def multiplied_by_library() -> Iterator[None]:
    """Inside the block the torch road multiplies by the library; as it is defined if none was built."""
    with pytest.MonkeyPatch.context() as patch:
        if library.is_available():
            for module in _MULTIPLY:
                patch.setattr(module, "matrix_rows", _matrix_rows)
            for module in _ACTIVATE:
                patch.setattr(module, "silu_times", silu_mul)
        yield


@cache
def _caller_alone() -> Pool:
    return Pool(1)


def _matrix_rows(matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    """See `strata.kernels.expert_rows.reference.matrix_rows`."""
    if x.shape[0] == 0:
        return x.new_zeros(0, matrix.layout.rows)
    return matrices.matrix_rows(_caller_alone(), native_matrix(matrix), x.contiguous())
