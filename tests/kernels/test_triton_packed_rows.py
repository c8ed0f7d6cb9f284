"""Triton's packed rows in its interpreter have the bits of the definition: `make interpreter`."""

import pytest
import torch

from strata.kernels.expert_rows.reference import matrix_rows
from strata.kernels.expert_rows.reference import quantize_rows as quantize_by_definition
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import KINDS, Kind, random_matrix, random_rows

pytestmark = needs_interpreter


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_have_the_bits_of_the_definition(kind: Kind) -> None:
    from strata.kernels.packed_rows.triton import packed_rows

    # 9 blocks, or what the kind allows: lanes that end, lanes that have two blocks; 21 rows: a tile that is not full.
    columns = 288 if 288 % kind.step == 0 else 256 if kind.step == 256 else 320
    matrix = random_matrix(5, kind.layout(21, columns), post_scale=0.37)
    x = random_rows(6, 3, columns)
    found = packed_rows(matrix, x)
    assert torch.equal(found.view(torch.int32), matrix_rows(matrix, x).view(torch.int32))
    assert torch.equal(found[1:2].view(torch.int32), packed_rows(matrix, x[1:2]).view(torch.int32))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_row_of_one_tile_too(kind: Kind) -> None:
    from strata.kernels.packed_rows.triton import packed_rows

    columns = 13 if kind.step == 1 else kind.step
    matrix, x = random_matrix(8, kind.layout(3, columns)), random_rows(9, 1, columns)
    assert torch.equal(packed_rows(matrix, x).view(torch.int32), matrix_rows(matrix, x).view(torch.int32))


@pytest.mark.parametrize("rows", [1, 2])
def test_activations_are_quantized_as_defined(rows: int) -> None:
    from strata.kernels.packed_rows.triton import quantize_rows

    x = random_rows(7, rows, 32 * 11)
    x[0, :32] = torch.arange(-16, 16) + 0.5  # ties
    x[0, 31] = 127.0
    made, wanted = quantize_rows(x), quantize_by_definition(x)
    assert torch.equal(made.q.view(torch.int8).reshape(rows, 11, 32).float(), wanted.q)
    assert torch.equal(made.d.view(torch.int32), wanted.d.view(torch.int32))
    halves = made.sums.view(torch.int16).reshape(rows, 11, 2)
    assert torch.equal(halves.float(), wanted.q.reshape(rows, 11, 2, 16).sum(dim=-1))


def test_twins_of_the_instructions_are_the_instructions() -> None:
    from tests.kernels.triton_probes import instructions_kernel

    a, b = torch.randint(-(2**31), 2**31, (2, 16), dtype=torch.int64, generator=torch.Generator().manual_seed(0)).int()
    sums, permuted = torch.empty_like(a), torch.empty_like(a)
    instructions_kernel[(1,)](a, b, sums, permuted)
    left, right = a.view(torch.int8).reshape(16, 4), b.view(torch.int8).reshape(16, 4)
    assert torch.equal(sums, (left.int() * right.int()).sum(dim=1).int() + torch.arange(16, dtype=torch.int32))
    both = torch.cat((left, right), dim=1)
    assert torch.equal(permuted.view(torch.int8).reshape(16, 4), both[:, [6, 4, 0, 7]])


def test_a_table_that_counts_needs_no_look_up() -> None:
    from strata.kernels.packed_rows import decode

    kinds = {kind.name: decode.decode_steps(kind.layout(16, 256)) for kind in KINDS}
    assert kinds["q4_0"].constants["CODE"] is decode.words_of_code4 and kinds["q4_0"].offset == -8
    assert kinds["q2_0"].constants["CODE"] is decode.words_of_code2 and kinds["q2_0"].offset == -1
    assert kinds["iq4_xs"].constants["CODE"] is decode.words_of_code4_table
    assert kinds["iq4_xs"].table[3] == int.from_bytes(bytes((53, 69, 89, 113)), "little")
