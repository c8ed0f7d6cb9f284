"""Packed matrices, tables and experts give blocks what their values mean."""

import pytest
import torch

from strata.errors import EngineError
from strata.experts.arena import load_arena
from strata.kernels.expert_rows import reference
from strata.kernels.packed_rows.native import native_matrix
from strata.models.fast.held import PackedExperts, PackedMatrices, PackedTable
from strata.models.fast.packing import TensorExperts, pack_values
from strata.native.pool import Pool
from strata.quant.packed import PackedMatrix
from strata.weights.source import MemorySource
from tests.kernels.random_matrices import KINDS, Kind, random_matrix
from tests.models.fast.twins import needs_library

pytestmark = needs_library
POOL_THREADS = 2


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool(POOL_THREADS, keeps_cores=False)


def held(pool: Pool, *parts: PackedMatrix, order: torch.Tensor | None = None) -> PackedMatrices:
    return PackedMatrices(pool, [native_matrix(part) for part in parts], order)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_of_a_table_are_the_matrix_decoded(kind: Kind, pool: Pool) -> None:
    parts = [random_matrix(seed, kind.layout(rows, 2 * max(kind.step, 20))) for seed, rows in enumerate((19, 32, 1))]
    table = PackedTable(held(pool, *parts))
    row_ids = torch.tensor([0, 18, 19, 50, 51, 3, 3])
    expected = torch.cat([part.decode() for part in parts])[row_ids]
    assert torch.equal(table(row_ids), expected)
    for wrong in (-1, 52):
        with pytest.raises(EngineError, match=f"row {wrong} of a table of 52"):
            table(torch.tensor([wrong]))


def test_columns_in_another_order_belong_to_their_inputs(pool: Pool) -> None:
    values, order = torch.randn(24, 40), torch.randperm(40)
    matrices = held(pool, pack_values(values[:, order]), order=order.int())
    x = torch.randn(3, 40)
    assert (matrices.times(x) - x @ values.t()).abs().max() < 1e-5


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_parts_stand_side_by_side_in_the_product(rows: int, pool: Pool) -> None:
    parts = [torch.randn(size, 48) for size in (7, 32, 16)]
    matrices = held(pool, *map(pack_values, parts))
    x = torch.randn(rows, 48)
    assert matrices.shape == (55, 48)
    assert (matrices.times(x) - x @ torch.cat(parts).t()).abs().max() < 1e-5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.code.is_float], ids=lambda kind: kind.name)
def test_integer_codes_differ_from_floats_by_the_rounding_of_activations(kind: Kind, pool: Pool) -> None:
    matrix = random_matrix(3, kind.layout(160, 2 * max(kind.step, 256)))
    weights, x = matrix.decode().double(), torch.randn(40, matrix.layout.columns)
    expected = x.double() @ weights.t()
    error = held(pool, matrix).times(x).double() - expected
    assert 1e-4 < (error.norm() / (x.norm(dim=1).outer(weights.norm(dim=1).float())).norm()) <= 1.5e-2


def test_too_many_matrices_of_one_input_are_refused(pool: Pool) -> None:
    with pytest.raises(EngineError, match="5 matrices share an input"):
        held(pool, *[pack_values(torch.randn(4, 8))] * 5)


def test_experts_compute_the_rows_that_chose_them(pool: Pool) -> None:
    source = TensorExperts(
        MemorySource({"l.experts.gate_up_proj": torch.randn(5, 64, 32), "l.experts.down_proj": torch.randn(5, 32, 32)})
    )
    arena = load_arena(source)
    x, ids = torch.randn(9, 32), torch.stack([torch.randperm(5)[:2] for _ in range(9)])
    found = PackedExperts(pool, arena, "l.").rows(x, ids)
    for row in range(9):
        for rank in range(2):
            expert = arena.expert("l.", int(ids[row, rank]))
            assert torch.equal(found[row, rank], reference.expert_rows(*expert.matrices, x[row : row + 1])[0])
