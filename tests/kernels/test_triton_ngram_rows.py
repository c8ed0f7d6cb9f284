"""Triton's n-gram rows in its interpreter: exact rows of the table, the twin's values within rounding."""

import pytest
import torch

from strata.kernels.launch_shapes import LaunchShape, matrix_launch
from strata.kernels.ngram_rows import reference
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.ngram_cases import TINY, check_runs, random_case, random_hash
from tests.kernels.quantized_rows import assert_quantized
from tests.kernels.random_matrices import KINDS, Kind, random_matrix
from tests.kernels.window_cases import window_of

pytestmark = needs_interpreter

SEGMENTS = [(2, 4), (0, 1), (3, 0), (1, 2)]  # slot 3 has no rows; one row of the bucket is unused
BUCKET, SLOTS = 8, 4
KIND = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_of_the_table_have_the_bits_of_the_definition(kind: Kind) -> None:
    from strata.kernels.ngram_rows import triton

    hash = random_hash(8, 20, 3, 1)
    columns = 256 if kind.step == 256 else 192 if kind.step > 1 else 48
    table = random_matrix(5, kind.layout(int(hash.head_sizes.sum()), columns), post_scale=0.37)
    history, rows = torch.tensor([[1, 2], [3, 4]]).int(), window_of([(1, 2)], 3, vocabulary=8)
    wanted, found = torch.full((2, 3, 2 * columns), 7.0)
    reference.ngram_gather(rows, history, table, hash, RowsOut(wanted, None))
    launch = matrix_launch(8, 1) if columns == 192 else LaunchShape()
    quantized = Activations.empty(3, 2 * columns // 32, torch.device("cpu"), launch)
    triton.ngram_gather(rows, history, table, hash, RowsOut(found, quantized))
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    assert_quantized(quantized, wanted, [0, 1])


@pytest.mark.parametrize("ngram_size", [2, 3, 4])
def test_hashes_are_those_of_the_twin(ngram_size: int) -> None:
    from strata.kernels.ngram_rows import triton

    hash = random_hash(8, 20, ngram_size, 2)
    table = random_matrix(5, KIND["f32"].layout(int(hash.head_sizes.sum()), 8))
    history = torch.randint(8, (SLOTS, ngram_size - 1), generator=torch.Generator().manual_seed(1)).int()
    rows = window_of(SEGMENTS, BUCKET, vocabulary=8, seed=3)
    assert bool((rows.tokens[:7] == hash.end_of_text).any()), "no n-gram reaches an end of text"
    wanted, found = torch.full((2, BUCKET, hash.heads * 8), 7.0)
    reference.ngram_gather(rows, history, table, hash, RowsOut(wanted, None))
    triton.ngram_gather(rows, history, table, hash, RowsOut(found, None))
    assert torch.equal(found, wanted)


def test_quantized_rows_need_no_plain_ones() -> None:
    from strata.kernels.ngram_rows import triton

    hash = random_hash(8, 20, 3, 2)
    table = random_matrix(5, KIND["q4_0"].layout(int(hash.head_sizes.sum()), 160))
    history, rows = torch.ones(SLOTS, 2).int(), window_of([(2, 2)], 3, vocabulary=8)
    plain = torch.zeros(3, 640)
    quantized = Activations.empty(3, 20, torch.device("cpu"), LaunchShape())
    triton.ngram_gather(rows, history, table, hash, RowsOut(None, quantized))
    reference.ngram_gather(rows, history, table, hash, RowsOut(plain, None))
    assert_quantized(quantized, plain, [0, 1])


def test_values_are_those_of_the_twin() -> None:
    from strata.kernels.ngram_rows import triton

    case, twin = random_case(TINY, 1, SLOTS, BUCKET), random_case(TINY, 1, SLOTS, BUCKET)
    rows = window_of(SEGMENTS, BUCKET)
    triton.ngram_finish(case.products, rows, case.tails[0], case.vectors, TINY, case.normed[0], case.out)
    reference.ngram_finish(twin.products, rows, twin.tails[0], twin.vectors, TINY, twin.normed[0], twin.out)
    torch.testing.assert_close(case.out, twin.out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(case.normed, twin.normed, rtol=1e-5, atol=1e-5)
    assert bool((case.out[7] == 7.0).all()), "an unused row was written"


def test_rows_one_by_one_have_the_bits_of_rows_together() -> None:
    from strata.kernels.ngram_rows import triton

    case = random_case(TINY, 1, 2, 4)
    triton.ngram_finish(
        case.products, window_of([(0, 1), (1, 3)], 4), case.tails[0], case.vectors, TINY, case.normed[0], case.out
    )
    history = torch.zeros(2, 2).int()
    for row in range(1, 4):
        alone, kept = torch.empty(1, TINY.width), torch.empty(1, 1, TINY.width)
        products, rows = tuple(each[row : row + 1] for each in case.products), window_of([(1, 1)], 1)
        triton.ngram_finish(products, rows, case.tails[0], case.vectors, TINY, kept[0], alone)
        triton.commit_ngram(history, case.tails, kept, rows, torch.ones(1).int())
        assert torch.equal(alone[0].view(torch.int32), case.out[row].view(torch.int32))


def test_runs_of_a_read_have_the_bits_of_its_rows_together() -> None:
    from strata.kernels.ngram_rows import triton

    def finish(key: torch.Tensor, value: torch.Tensor, query: torch.Tensor, *others: object) -> None:
        triton.ngram_finish((key, value, query), *others)

    check_runs(finish, triton.commit_ngram)


@pytest.mark.parametrize(
    ("accepted", "history_rows"), [([0, 0, 3, 0], 2), ([1, 1, 2, 0], 1), ([3, 0, 0, 1], 3), ([4, 1, 0, 2], 2)]
)
def test_commits_are_those_of_the_twin(accepted: list[int], history_rows: int) -> None:
    from strata.kernels.ngram_rows import triton

    case, twin = random_case(TINY, 2, SLOTS, BUCKET), random_case(TINY, 2, SLOTS, BUCKET)
    rows, counts = window_of(SEGMENTS, BUCKET), torch.tensor(accepted).int()
    found = torch.arange(SLOTS * history_rows).reshape(SLOTS, history_rows).int()
    wanted = found.clone()
    triton.commit_ngram(found, case.tails, case.normed, rows, counts)
    reference.commit_ngram(wanted, twin.tails, twin.normed, rows, counts)
    assert torch.equal(found, wanted)
    assert torch.equal(case.tails, twin.tails)


def test_a_table_is_given_as_the_kernel_lists_it() -> None:
    from strata.kernels.ngram_rows.triton import gather_kernel
    from strata.kernels.packed_rows.decode_row import TABLE_ARGUMENTS, table_arguments

    table = random_matrix(5, KIND["q4_1"].layout(16, 32))
    given = dict(zip(TABLE_ARGUMENTS, table_arguments(table), strict=True))
    assert tuple(gather_kernel.arg_names[: len(given)]) == TABLE_ARGUMENTS
    assert (given["codes"], given["mins"]) == (table.codes.data_ptr(), table.mins.data_ptr())
    assert given["super_mins"] == table.codes.data_ptr(), "an array that is not there points somewhere valid"
    assert (given["offset"], given["columns"], given["post_scale"]) == (0, 32, 1.0)
