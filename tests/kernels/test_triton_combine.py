"""Triton's combining of rows in its interpreter has the bits of the definition: `make interpreter`."""

import pytest
import torch

from strata.kernels.combine.reference import combine as by_definition
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import random_rows

pytestmark = needs_interpreter


@pytest.mark.parametrize(("rows", "ranks", "hidden"), [(1, 10, 256), (3, 4, 131), (2, 1, 7)])
@pytest.mark.parametrize("has_shared", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_rows_have_the_bits_of_the_definition(
    rows: int, ranks: int, hidden: int, has_shared: bool, is_masked: bool
) -> None:
    from strata.kernels.combine.triton import combine_rows

    generator = torch.Generator().manual_seed(hidden)
    computed = random_rows(1, rows * ranks, hidden).reshape(rows, ranks, hidden)
    weights = torch.rand(rows, ranks, generator=generator)
    mask = torch.rand(rows, ranks, generator=generator) < 0.5 if is_masked else None
    if mask is not None:
        computed = computed.masked_fill(~mask[..., None], float("nan"))
    everything = torch.ones(rows, ranks, dtype=torch.bool) if mask is None else mask
    shared = random_rows(2, rows, hidden) if has_shared else None
    gates = torch.rand(rows, generator=generator)
    for shared_weights in (None, gates) if has_shared else (None,):
        found = combine_rows(computed, weights, mask, shared, shared_weights)
        wanted = by_definition(computed, weights, everything, shared, shared_weights)
        assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
