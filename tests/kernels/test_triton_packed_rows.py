"""Triton's packed rows in its interpreter have the bits of the definition: `make interpreter`."""

import pytest
import torch

from strata.kernels.expert_rows.reference import matrix_rows
from strata.kernels.expert_rows.reference import quantize_rows as quantize_by_definition
from strata.kernels.launch_shapes import LaunchShape, few_launch, matrix_launch
from strata.quant.packed import integers_of
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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.code.is_float], ids=lambda kind: kind.name)
def test_matrix_units_have_the_bits_of_the_definition(kind: Kind) -> None:
    from strata.kernels.packed_rows.triton import packed_rows

    columns = 288 if 288 % kind.step == 0 else 256 if kind.step == 256 else 320
    matrix, x = random_matrix(5, kind.layout(21, columns), post_scale=0.37), random_rows(6, 11, columns)
    wanted = matrix_rows(matrix, x)
    for rows in (8, 16):
        found = packed_rows(matrix, x, matrix_launch(rows, 1))
        assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


FEW = (few_launch(1, 8, 4, 8, 2), few_launch(2, 4, 2, 1, 1), few_launch(2, 8, 1, 4, 4), few_launch(4, 8, 2, 4, 3))


@pytest.mark.parametrize("name", ["q8_0", "q4_k", "nvfp4", "bf16"])
def test_programs_of_some_outputs_have_the_bits_of_the_definition(name: str) -> None:
    from strata.kernels.packed_rows.triton import packed_rows

    # More blocks than lanes read side by side, of which the last ones are missing; outputs end within a program.
    kind = next(kind for kind in KINDS if kind.name == name)
    columns = 544 if kind.step <= 32 else 512
    matrix, x = random_matrix(5, kind.layout(21, columns), post_scale=0.37), random_rows(6, 3, columns)
    wanted = matrix_rows(matrix, x)
    for launch in FEW:
        assert torch.equal(packed_rows(matrix, x, launch).view(torch.int32), wanted.view(torch.int32)), launch


@pytest.mark.parametrize("rows", [1, 2])
def test_activations_are_quantized_as_defined(rows: int) -> None:
    from strata.kernels.packed_rows.activations import quantize_rows

    x = random_rows(7, rows, 32 * 11)
    x[0, :32] = torch.arange(-16, 16) + 0.5  # ties
    x[0, 31] = 127.0
    wanted = quantize_by_definition(x)
    for launch in (LaunchShape(), matrix_launch(8, 1)):
        made = quantize_rows(x, launch)
        steps = (made.row_step, made.block_step)
        words = made.values.as_strided((rows, 11, 4), (*(4 * step for step in steps), 1)).contiguous()
        q = words.view(torch.int8).reshape(rows, 11, 4, 2, 4).transpose(2, 3)
        assert torch.equal(q.reshape(rows, 11, 32).float(), wanted.q)
        records = made.records.as_strided((rows, 11), steps).contiguous()
        d = records.view(torch.int32).reshape(rows, 11, 2)[..., 0]
        assert torch.equal(d, wanted.d.view(torch.int32))
        halves = records.view(torch.int16).reshape(rows, 11, 4)[..., 2:]
        assert torch.equal(halves.float(), wanted.q.reshape(rows, 11, 2, 16).sum(dim=-1))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.code.is_float], ids=lambda kind: kind.name)
def test_bytes_for_the_matrix_units_are_the_integers(kind: Kind) -> None:
    from strata.kernels.packed_rows.decode import decode_steps
    from strata.kernels.packed_rows.decode_bytes import BYTES
    from tests.kernels.triton_probes import bytes_kernel

    matrix = random_matrix(3, kind.layout(16, 256))
    steps = decode_steps(matrix.layout)
    assert steps.code_by_bytes in BYTES.values()
    found = torch.empty(8, 16, 32, dtype=torch.int8)
    bytes_kernel[(1,)](matrix.codes.view(torch.int32), found, *steps.table, BLOCKS=8, CODE=steps.code_by_bytes)
    integers = torch.from_numpy(integers_of(matrix.layout, matrix.to_rows())).reshape(16, 8, 2, 4, 4)
    wanted = integers.permute(1, 0, 3, 2, 4).reshape(8, 16, 32)  # word w of the low columns, then of the high
    assert torch.equal(found + steps.offset, wanted)


def test_sums_and_records_become_floats_exactly() -> None:
    from tests.kernels.triton_probes import sums_kernel

    sums = torch.tensor([0, 1, -1, 520192, -520192, 127, *range(100, 110)], dtype=torch.int32)
    d = torch.tensor([0.0, -0.0, 1e-40, 3.5, *range(12)])
    halves = torch.randint(-2032, 2033, (16, 2), generator=torch.Generator().manual_seed(0)).short()
    records = torch.stack((d.view(torch.int32), halves.view(torch.int32)[:, 0]), dim=1).view(torch.int64)[:, 0]
    floats, turned = torch.empty(16), torch.empty(16)
    low, high = torch.empty(16, dtype=torch.int32), torch.empty(16, dtype=torch.int32)
    sums_kernel[(1,)](sums, records.contiguous(), floats, turned, low, high)
    assert torch.equal(floats.view(torch.int32), sums.float().view(torch.int32))
    assert torch.equal(turned.view(torch.int32), (-d).view(torch.int32))
    assert torch.equal(torch.stack((low, high), dim=1).short(), halves)


def test_lanes_of_a_group_are_added_by_the_tree() -> None:
    from tests.kernels.triton_probes import lanes_kernel

    lanes, out = random_rows(4, 8, 128), torch.empty(16, 8)
    lanes_kernel[(1,)](lanes, out)
    four = lanes[:4] + lanes[4:]
    two = four[:2] + four[2:]
    assert torch.equal(out.view(torch.int32), (two[0] + two[1]).reshape(16, 8).view(torch.int32))


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
    assert kinds["q4_0"].code is decode.words_of_code4 and kinds["q4_0"].offset == -8
    assert kinds["q2_0"].code is decode.words_of_code2 and kinds["q2_0"].offset == -1
    assert kinds["iq4_xs"].code is decode.words_of_code4_table
    assert kinds["iq4_xs"].table[3] == int.from_bytes(bytes((53, 69, 89, 113)), "little")
