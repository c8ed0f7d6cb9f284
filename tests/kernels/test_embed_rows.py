"""Rows of a packed table in torch: every code against its whole decoded table, and what is refused."""

import pytest
import torch

from strata.kernels.embed_rows import embed_rows
from strata.kernels.embed_rows.reference import pick_rows
from strata.quant.packed import PackedMatrix
from tests.kernels.random_matrices import KINDS, Kind, random_matrix

KIND = {kind.name: kind for kind in KINDS}


def columns_of(kind: Kind) -> int:
    """Several blocks, and for codes that allow it a last one that is short."""
    return 45 if kind.step == 1 else 2 * kind.step


def by_decoding(table: list[PackedMatrix], tokens: list[int]) -> torch.Tensor:
    return torch.cat([matrix.decode() for matrix in table])[tokens]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_have_the_bits_of_the_decoded_table(kind: Kind) -> None:
    columns = columns_of(kind)
    table = [random_matrix(seed, kind.layout(37, columns), post_scale) for seed, post_scale in ((1, 1.0), (2, 0.37))]
    tokens = [36, 0, 37, 73, 15, 15, 52]
    out = torch.full((len(tokens), 3 * columns), float("nan"))
    embed_rows(table, torch.tensor(tokens, dtype=torch.int32), out, 3)
    wanted = by_decoding(table, tokens)
    for stream in out.unflatten(1, (3, columns)).unbind(1):
        assert torch.equal(stream.contiguous().view(torch.int32), wanted.view(torch.int32))


def test_a_token_that_the_table_lacks_is_not_a_number() -> None:
    table = [random_matrix(1, KIND["q8_0"].layout(20, 32))]
    out = torch.zeros(4, 32)
    embed_rows(table, torch.tensor([-1, 20, 3, 2**31 - 1], dtype=torch.int32), out, 1)
    assert out.isnan().all(dim=1).tolist() == [True, True, False, True]
    assert torch.equal(out[2], table[0].decode()[3])


def test_more_rows_than_a_tile_are_picked_in_their_order() -> None:
    matrix = random_matrix(1, KIND["q4_k"].layout(50, 256))
    rows = torch.arange(49, 10, -1)
    assert torch.equal(pick_rows(matrix, rows).decode(), matrix.decode()[rows])


def test_other_shapes_are_refused() -> None:
    table, tokens = [random_matrix(1, KIND["q8_0"].layout(20, 32))], torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="table is empty"):
        embed_rows([], tokens, torch.zeros(2, 32), 1)
    with pytest.raises(ValueError, match="matrices of 32 and of 64 columns"):
        embed_rows([*table, random_matrix(1, KIND["q8_0"].layout(20, 64))], tokens, torch.zeros(2, 32), 1)
    with pytest.raises(ValueError, match=r"tokens must be contiguous torch.int32"):
        embed_rows(table, tokens.long(), torch.zeros(2, 32), 1)
    with pytest.raises(ValueError, match=r"streams_out must be .* \[2, 64\], not .* \[2, 32\]"):
        embed_rows(table, tokens, torch.zeros(2, 32), 2)
