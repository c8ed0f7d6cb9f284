"""Matrix x rows in C++: every instruction set gives the bits of the torch reference, for any code, shape, threads."""

from collections.abc import Iterator

import pytest
import torch

from strata.errors import EngineError
from strata.kernels.expert_rows import reference
from strata.kernels.packed_rows.native import native_matrix
from strata.native import isa, library
from strata.native.matrices import matrices_rows, matrix_rows, quantize
from strata.native.pool import Pool
from tests.kernels.random_matrices import KINDS, Kind, random_matrix, random_rows
from tests.native_silu import silu_mul

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

CASES_A_KIND = 14  # 18 kinds: with the experts' cases more than a thousand (case, path) pairs


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def shape_of(case: int, kind: Kind) -> tuple[int, int, int]:
    """Rows, columns and activation rows that reach every edge: short tiles, short lanes, several chunks and groups."""
    random = torch.Generator().manual_seed(case * 31 + kind.step)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    columns = draw(1, 9) * kind.step if kind.step > 1 else draw(1, 300)
    if case % 7 == 0 and kind.step <= 64:
        columns = kind.step * draw(30, 41)
    return draw(1, 70), columns, (1, 2, 3, 5, 8, 33)[case % 6]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_path_gives_the_bits_of_the_reference(kind: Kind, pool: Pool) -> None:
    for case in range(CASES_A_KIND):
        rows, columns, count = shape_of(case, kind)
        matrix = random_matrix(case, kind.layout(rows, columns), (1.0, 0.37)[case % 2])
        x = random_rows(case, count, columns)
        wanted = reference.matrix_rows(matrix, x)
        packed = native_matrix(matrix)
        for name in isa.available():
            with isa.forced(name):
                found = matrix_rows(pool, packed, x)
            assert same_bits(found, wanted), f"{kind.name} {rows} x {columns}, {count} rows, {name}"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_show(threads: int, pool: Pool) -> None:
    kinds = [kind for kind in KINDS if kind.name in ("q4_k", "q2_0", "q6_k", "bf16")]
    matrices = [native_matrix(random_matrix(7, kind.layout(rows, 512))) for rows, kind in enumerate(kinds, 200)]
    x = random_rows(3, 6, 512)
    alone = [matrix_rows(pool, matrix, x) for matrix in matrices]
    with Pool(threads, keeps_cores=False) as other:
        for _ in range(20):
            together = matrices_rows(other, matrices, x)
            assert all(same_bits(a, b) for a, b in zip(alone, together, strict=True))


def test_rows_of_a_wider_buffer_are_read_and_written_in_place(pool: Pool) -> None:
    matrix = random_matrix(1, KINDS[2].layout(40, 96))
    wide, out = random_rows(2, 4, 160), torch.full((4, 50), 7.0)
    matrix_rows(pool, native_matrix(matrix), wide[:, :96], out[:, :40])
    assert same_bits(out[:, :40], reference.matrix_rows(matrix, wide[:, :96].contiguous()))
    assert bool((out[:, 40:] == 7).all())


@pytest.mark.parametrize("name", isa.available() if library.is_available() else [])
def test_quantize_and_silu_are_those_of_the_reference(name: str) -> None:
    x = random_rows(5, 1, 32 * 77)
    wanted = reference.quantize_rows(x)
    gate, up = torch.linspace(-100, 100, 4003), random_rows(6, 1, 4003)[0]
    with isa.forced(name):
        q, d = quantize(x[0])
        h = silu_mul(gate, up)
    assert torch.equal(q.float().reshape(1, -1, 32), wanted.q) and same_bits(d[None], wanted.d)
    assert same_bits(h, reference.silu_times(gate, up))


def test_another_rounding_mode_of_the_caller_neither_matters_nor_changes(pool: Pool) -> None:
    matrix = random_matrix(1, KINDS[4].layout(64, 512))
    x = random_rows(4, 2, 512) * 1e-30
    wanted = reference.matrix_rows(matrix, x)
    assert torch.set_flush_denormal(True)
    try:
        found = matrix_rows(pool, native_matrix(matrix), x)
        still_flushes = (torch.tensor([1e-39]) * 1.0).item() == 0
    finally:
        torch.set_flush_denormal(False)
    assert same_bits(found, wanted)
    assert still_flushes


def test_what_the_contract_does_not_allow_is_refused(pool: Pool) -> None:
    good = native_matrix(random_matrix(1, KINDS[2].layout(16, 64)))
    with pytest.raises(ValueError, match="x must be float32"):
        matrix_rows(pool, good, torch.zeros(1, 32))
    with pytest.raises(ValueError, match="x must be float32"):
        matrix_rows(pool, good, torch.zeros(1, 64, dtype=torch.float64))
    other = native_matrix(random_matrix(1, KINDS[2].layout(16, 96)))
    with pytest.raises(EngineError, match="cannot share activations"):
        matrices_rows(pool, [good, other], torch.zeros(1, 64), [torch.zeros(1, 16), torch.zeros(1, 16)])
    for field, value in (
        ("code", 5),
        ("columns", 65),
        ("sub_block", 8),
        ("scale_kind", 9),
        ("min_kind", 3),
        ("rows", 0),
    ):
        broken = native_matrix(random_matrix(1, KINDS[2].layout(16, 64)))
        setattr(broken.struct, field, value)
        with pytest.raises((EngineError, ValueError)):
            matrix_rows(pool, broken, torch.zeros(1, broken.columns))
    missing = native_matrix(random_matrix(1, KINDS[2].layout(16, 64)))
    missing.struct.scales = None
    with pytest.raises(EngineError, match="scales are missing"):
        matrix_rows(pool, missing, torch.zeros(1, 64))
