"""Triton's delta net for windows in its interpreter: the twin's values, its own bits in every window."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.delta_rows import DeltaRowsShape, DeltaRowsWork, reference
from strata.kernels.launch_shapes import LaunchShape, matrix_launch
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from tests.kernels.delta_cases import ANY, PUBLISHED, TINY, WIDER, copy_of, random_case
from tests.kernels.delta_checks import CERTAIN, check_certain
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.quantized_rows import assert_quantized
from tests.kernels.window_cases import window_of

pytestmark = needs_interpreter

SEGMENTS = [(2, 3), (0, 1), (3, 0), (1, 2)]  # slot 3 has no rows; two rows of the bucket are unused
BUCKET, SLOTS = 8, 4
USED = list(range(6))


def work_of(rows: int, shape: DeltaRowsShape) -> DeltaRowsWork:
    """Nobody reads what is not written: NaN."""
    work = DeltaRowsWork.empty(rows, shape, "cpu")
    for part in (work.inputs, work.recalled):
        part.fill_(float("nan"))
    return work


@pytest.mark.parametrize("shape", [TINY, WIDER], ids=["tiny", "wider"])
def test_values_are_those_of_the_twin_and_the_state_stays(shape: DeltaRowsShape) -> None:
    from strata.kernels.delta_rows import triton

    case, rows = random_case(shape, 2, SLOTS, BUCKET), window_of(SEGMENTS, BUCKET)
    before = copy_of(case.states)
    wanted, found = torch.full((2, BUCKET, shape.value_width), 7.0)
    of_layer, work = (case.states.layer(1), case.vectors.layer(1)), work_of(BUCKET, shape)
    arguments = (case.projected[1], rows, ANY, *of_layer, shape, work)
    reference.delta_rows(*arguments, RowsOut(wanted, None), None)
    triton.delta_rows(*arguments, RowsOut(found, None), None)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert bool((found[6:] == 7.0).all()), "an unused row was written"
    assert torch.equal(case.states.delta, before.delta) and torch.equal(case.states.conv_tail, before.conv_tail)


@pytest.mark.parametrize("shape", [TINY, WIDER], ids=["tiny", "wider"])
@pytest.mark.parametrize("accepted", [[0, 0, 2, 0], [2, 0, 0, 1], [3, 1, 0, 2]])
def test_commits_are_those_of_the_twin(shape: DeltaRowsShape, accepted: list[int]) -> None:
    from strata.kernels.delta_rows.commit import commit_delta

    case, rows = random_case(shape, 2, SLOTS, BUCKET), window_of(SEGMENTS, BUCKET)
    found, wanted, counts = case.states, copy_of(case.states), torch.tensor(accepted).int()
    before = copy_of(found)
    reference.commit_delta(wanted, case.projected, rows, ANY, counts, case.vectors, shape)
    commit_delta(found, case.projected, rows, ANY, counts, case.vectors, shape)
    torch.testing.assert_close(found.delta, wanted.delta, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.conv_tail, wanted.conv_tail)
    unused = [3] + [slot for (slot, _), count in zip(SEGMENTS, accepted, strict=True) if count == 0]
    assert torch.equal(found.delta[:, unused], before.delta[:, unused])


@pytest.mark.parametrize("shape", [TINY, WIDER], ids=["tiny", "wider"])
def test_rows_one_by_one_have_the_bits_of_rows_together(shape: DeltaRowsShape) -> None:
    from strata.kernels.delta_rows import triton

    case, vectors = random_case(shape, 1, 2, 4), random_case(shape, 1, 2, 4).vectors.layer(0)
    together, state = torch.empty(4, shape.value_width), case.states.layer(0)
    whole = window_of([(0, 1), (1, 3)], 4)
    work = work_of(4, shape)
    triton.delta_rows(case.projected[0], whole, ANY, state, vectors, shape, work, RowsOut(together, None), None)
    for row in range(1, 4):
        alone, one = torch.empty(1, shape.value_width), case.projected[:, row : row + 1].contiguous()
        rows = window_of([(1, 1)], 1)
        work = work_of(1, shape)
        triton.delta_rows(one[0], rows, ANY, state, vectors, shape, work, RowsOut(alone, None), None)
        triton.commit_delta(case.states, one, rows, ANY, torch.ones(1).int(), case.vectors, shape)
        assert torch.equal(alone[0].view(torch.int32), together[row].view(torch.int32))


@pytest.mark.parametrize("shape", [TINY, WIDER], ids=["tiny", "wider"])
def test_rows_are_quantized_as_the_matrices_read_them(shape: DeltaRowsShape) -> None:
    from strata.kernels.delta_rows import triton

    case, rows = random_case(shape, 1, SLOTS, BUCKET), window_of(SEGMENTS, BUCKET)
    plain, blocks = torch.zeros(BUCKET, shape.value_width), shape.value_width // 32
    of_layer, work = (case.states.layer(0), case.vectors.layer(0)), work_of(BUCKET, shape)
    arguments = (case.projected[0], rows, ANY, *of_layer, shape, work)
    for launch in (LaunchShape(), matrix_launch(8, 1)):
        quantized = Activations.empty(BUCKET, blocks, torch.device("cpu"), launch)
        triton.delta_rows(*arguments, RowsOut(plain, quantized), None)
        assert_quantized(quantized, plain, USED)


def test_heads_come_in_the_order_of_the_output_matrix() -> None:
    from strata.kernels.delta_rows import triton

    case, order = random_case(WIDER, 1, SLOTS, BUCKET), torch.tensor([1, 0]).int()
    plain, moved = torch.zeros(2, BUCKET, WIDER.value_width)
    state, vectors, work = case.states.layer(0), case.vectors.layer(0), work_of(BUCKET, WIDER)
    arguments = (case.projected[0], window_of(SEGMENTS, BUCKET), ANY, state, vectors, WIDER, work)
    triton.delta_rows(*arguments, RowsOut(plain, None), None)
    quantized = Activations.empty(BUCKET, 2, torch.device("cpu"), LaunchShape())
    triton.delta_rows(*arguments, RowsOut(moved, None), order)
    assert torch.equal(moved, torch.cat((plain[:, 32:], plain[:, :32]), dim=1))
    triton.delta_rows(*arguments, RowsOut(None, quantized), order)
    assert_quantized(quantized, moved, USED)


def is_small(name: str) -> bool:
    return sum(count for _, count in CERTAIN[name].segments) < 8


@pytest.mark.parametrize(
    ("shape", "name"),
    [(WIDER, name) for name in CERTAIN] + [(TINY, name) for name in CERTAIN if is_small(name)],
    ids=lambda value: value if isinstance(value, str) else {TINY: "tiny", WIDER: "wider"}[value],
)
def test_certain_segments_leave_the_state_that_a_commit_replays(shape: DeltaRowsShape, name: str) -> None:
    """Many rows in one of the shapes, for they take long; the twin and a GPU are asked in both."""
    from strata.kernels.delta_rows import triton

    check_certain(triton.delta_rows, triton.commit_delta, shape, CERTAIN[name])


def test_columns_of_a_published_head_are_one_warp() -> None:
    """Of small heads as well; a wider head's columns take more registers than a warp has."""
    from strata.kernels.delta_rows.rule import cut_of

    assert [cut_of(shape) for shape in (PUBLISHED, TINY, replace(TINY, value_dim=8))] == [(16, 1), (16, 1), (8, 1)]
    assert cut_of(replace(PUBLISHED, key_dim=256)) == (16, 2)
