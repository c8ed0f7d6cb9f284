"""A thousand random matrices and a hundred experts: every path of the C++ library gives the torch reference's bits."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from strata.experts.pool import ExpertPool, group_by_expert
from strata.kernels.expert_rows import reference
from strata.kernels.packed_rows.native import native_matrix
from strata.native import isa, library
from strata.native.matrices import matrices_rows, matrix_rows
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout
from tests.kernels.random_matrices import KINDS, Kind, random_experts, random_matrix, random_rows

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

BATCHES, CASES_A_BATCH = 10, 100
EXPERT_BATCHES, EXPERTS_A_BATCH = 4, 25
# one row is a stream, from 8 (float codes: 32) on rows are panels of 96, whose groups are 2, 4 or 8 rows
COUNTS = (1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 17, 31, 33)
MANY = (96, 97, 203)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2, keeps_cores=False) as made:
        yield made


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def columns_of(random: np.random.Generator, kind: Kind) -> int:
    """Mostly few; sometimes more than a chunk of a panel (64 blocks, 528 columns of a float code) holds."""
    if random.random() < 0.06:
        return int(random.integers(2, 4)) * 1088 // kind.step * kind.step
    return int(random.integers(1, 70)) if kind.step == 1 else int(random.integers(1, 4)) * kind.step


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_matrices(batch: int, pool: Pool) -> None:
    random = np.random.default_rng(batch)
    for case in range(CASES_A_BATCH):
        kind = KINDS[int(random.integers(len(KINDS)))]
        rows, columns = int(random.integers(1, 50)), columns_of(random, kind)
        count = int(random.choice(MANY if random.random() < 0.03 else COUNTS))
        matrix = random_matrix(batch * 1000 + case, kind.layout(rows, columns), (1.0, 0.37)[case % 2])
        x = random_rows(batch * 1000 + case, count, columns)
        wanted, packed = reference.matrix_rows(matrix, x), native_matrix(matrix)
        for name in isa.available():
            with isa.forced(name):
                found = matrix_rows(pool, packed, x)
            assert same_bits(found, wanted), f"{kind.name} {rows} x {columns}, {count} rows, {name}"


@pytest.mark.parametrize("batch", range(EXPERT_BATCHES))
def test_random_experts(batch: int, pool: Pool) -> None:
    """Two experts, of which the first is chosen by most rows: panels and streams in one list."""
    random = np.random.default_rng(100 + batch)
    for case in range(EXPERTS_A_BATCH):
        gate, down = (KINDS[int(i)] for i in random.integers(len(KINDS), size=2))
        hidden, width = (int(random.integers(1, 3)) * max(kind.step, 16) for kind in (gate, down))
        layout = BlobLayout(gate.layout(width, hidden), gate.layout(width, hidden), down.layout(hidden, width))
        experts = random_experts(case, layout, 2)
        rows = int(random.choice((1, 2, 7, 12, 40)))
        choices = torch.zeros(rows, 1, dtype=torch.int64)
        choices[: min(rows - 1, 1)] = 1
        x = random_rows(case, rows, hidden) * 1e-2
        wanted = torch.stack(
            [reference.expert_rows(*experts.matrices[int(e)], x[i : i + 1]) for i, e in enumerate(choices[:, 0])]
        )
        memory, stride = aligned(experts.blobs.memory), experts.blobs.stride
        blobs = {n: memory[n * stride : (n + 1) * stride] for n in range(2)}
        for name in isa.available():
            out = torch.full_like(wanted, float("nan"))
            with isa.forced(name):
                ExpertPool(pool, layout).compute(group_by_expert(choices, blobs), x, out)
            assert same_bits(out, wanted), f"{gate.name}, {down.name}, {hidden} x {width}, {rows} rows, {name}"


def aligned(memory: torch.Tensor) -> torch.Tensor:
    """A copy that begins at a multiple of 64 bytes."""
    room = torch.empty(memory.numel() + 64, dtype=torch.uint8)
    begin = -room.data_ptr() % 64
    return room[begin : begin + memory.numel()].copy_(memory)


def test_panels_of_two_codes_share_their_rows(pool: Pool) -> None:
    by_name = {kind.name: kind for kind in KINDS}
    packed, floats = by_name["q4_k"].layout(40, 512), by_name["bf16"].layout(24, 512)
    matrices = [random_matrix(1, packed), random_matrix(2, floats)]
    x = random_rows(3, 500, 512)  # more than one pass over the rows
    found = [torch.full((500, matrix.layout.rows + 3), 7.0) for matrix in matrices]
    matrices_rows(pool, [native_matrix(m) for m in matrices], x, [f[:, :-3] for f in found])
    for matrix, rows in zip(matrices, found, strict=True):
        with isa.forced("scalar"):
            assert same_bits(rows[:, :-3], matrix_rows(pool, native_matrix(matrix), x))
        assert bool((rows[:, -3:] == 7).all())
