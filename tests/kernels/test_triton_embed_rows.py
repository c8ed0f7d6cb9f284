"""Triton's rows of a packed table in its interpreter have the bits of the twin, in every code."""

import pytest
import torch

from strata.kernels.embed_rows import reference
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import KINDS, Kind, random_matrix

pytestmark = needs_interpreter

KIND = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_have_the_bits_of_the_twin(kind: Kind) -> None:
    from strata.kernels.embed_rows.triton import embed_rows

    # 9 blocks, or what the kind allows, the last of a float code short: two programs a row.
    columns = 287 if kind.step == 1 else 512 if kind.step == 256 else 320
    table = [random_matrix(seed, kind.layout(37, columns), post_scale) for seed, post_scale in ((1, 1.0), (2, 0.37))]
    tokens = torch.tensor([36, 0, -1, 37, 73, 74, 15, 2**31 - 1], dtype=torch.int32)
    found, wanted = torch.zeros(8, 2 * columns), torch.zeros(8, 2 * columns)
    embed_rows(table, tokens, found, 2)
    reference.embed_rows(table, tokens, wanted, 2)
    is_known = [0, 1, 3, 4, 6]
    assert torch.equal(found[is_known].view(torch.int32), wanted[is_known].view(torch.int32))
    assert torch.equal(found.isnan(), wanted.isnan())


def test_a_table_may_hold_several_codes() -> None:
    from strata.kernels.embed_rows.triton import embed_rows

    table = [random_matrix(1, KIND["q6_k"].layout(5, 256)), random_matrix(2, KIND["bf16"].layout(40, 256))]
    tokens = torch.tensor([4, 5, 44, 0], dtype=torch.int32)
    found = torch.zeros(4, 256)
    embed_rows(table, tokens, found, 1)
    wanted = torch.cat([matrix.decode() for matrix in table])[tokens.long()]
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
