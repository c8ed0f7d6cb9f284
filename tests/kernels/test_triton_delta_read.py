"""Triton's delta net for reads in its interpreter: the rule's values, and its own bits in every cut."""

from functools import partial

import pytest
import torch

from strata.kernels.delta_read import DeltaReadWork, reference
from strata.kernels.delta_rows import DeltaRowsShape
from tests.kernels.delta_cases import TINY, DeltaCase
from tests.kernels.delta_read_checks import (
    LENGTHS,
    POSITIONS,
    SIGMOID,
    SLOT,
    check_cuts,
    grid_cuts,
    read_case,
    relative_error,
    row_by_row,
    run_read,
    small_decays_behind_large,
)
from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter


def kernels() -> partial[None]:
    """The kernels with as few programs as they can have."""
    from strata.kernels.delta_read import triton

    return partial(triton.delta_read, launch=triton.DeltaReadLaunch(rows=64))


def assert_values(case: DeltaCase, out: torch.Tensor, delta: torch.Tensor, tail: torch.Tensor) -> None:
    """Rows to the bfloat16 that they are rounded to, the state far better than that."""
    wanted, wanted_delta, wanted_tail = row_by_row(case)
    assert relative_error(out, wanted) < 2.5e-3
    assert relative_error(delta, wanted_delta) < 2e-5
    assert torch.equal(tail.double(), wanted_tail)


@pytest.mark.parametrize(
    ("shape", "rows", "position"),
    [(SIGMOID, rows, position) for rows, position in zip(LENGTHS, POSITIONS, strict=True)] + [(TINY, 66, 63)],
)
def test_values_are_those_of_the_rule_and_cuts_change_no_bit(shape: DeltaRowsShape, rows: int, position: int) -> None:
    case = read_case(shape, rows)
    found = check_cuts(kernels(), case, position, grid_cuts(position, rows), 64)
    assert_values(case, found.out, found.state.delta[SLOT], found.state.conv_tail[SLOT])


def test_passes_of_chunks_change_no_bit_at_any_start() -> None:
    check_cuts(kernels(), read_case(SIGMOID, 66), 63, [66], 64)


def test_bfloat16_rows_are_read_as_they_are() -> None:
    case = read_case(TINY, 40)
    narrow = DeltaCase(TINY, case.states, case.vectors, case.projected.bfloat16())
    found = check_cuts(kernels(), narrow, 40, grid_cuts(40, 40), 64)
    assert_values(narrow, found.out, found.state.delta[SLOT], found.state.conv_tail[SLOT])


def test_heads_come_in_the_order_of_the_output_matrix() -> None:
    case, order = read_case(SIGMOID, 3), torch.tensor([1, 0]).int()
    work = DeltaReadWork.empty(64, SIGMOID, "cpu")
    found = run_read(kernels(), case, 0, [3], work, order).out
    wanted = run_read(reference.delta_read, case, 0, [3], work, order).out
    assert relative_error(found, wanted.double()) < 5e-3


def test_every_launch_has_the_same_bits() -> None:
    from strata.kernels.delta_read import triton

    case, work = read_case(SIGMOID, 10), DeltaReadWork.empty(64, SIGMOID, "cpu")
    wanted = run_read(kernels(), case, 5, [10], work)
    for launch in (triton.DeltaReadLaunch(), triton.DeltaReadLaunch(rows=32, columns=8, stages=1)):
        found = run_read(partial(triton.delta_read, launch=launch), case, 5, [10], work)
        assert torch.equal(found.out, wanted.out) and torch.equal(found.state.delta, wanted.state.delta)


def test_equal_keys_lose_nothing() -> None:
    """The hardest system: every key finds all of every other one, nothing decays, and all is written anew."""
    case = read_case(TINY, 64)
    case.projected[0, :, : TINY.conv_width] = case.projected[0, :1, : TINY.conv_width]
    case.projected[0, :, -2 * TINY.value_heads : -TINY.value_heads] = 20.0
    case.projected[0, :, -TINY.value_heads :] = -20.0
    found = run_read(kernels(), case, 0, [64], DeltaReadWork.empty(64, TINY, "cpu"))
    assert_values(case, found.out, found.state.delta[SLOT], found.state.conv_tail[SLOT])


def test_small_decays_behind_a_large_one_are_kept() -> None:
    case = small_decays_behind_large(SIGMOID, 64)
    found = run_read(kernels(), case, 0, [64], DeltaReadWork.empty(64, SIGMOID, "cpu"))
    assert_values(case, found.out, found.state.delta[SLOT], found.state.conv_tail[SLOT])


def test_the_inverse_is_that_of_the_whole_system() -> None:
    from tests.kernels.triton_delta_read_probes import inverse_kernel

    below = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).tril(-1) * 0.3
    found = torch.empty(64, 64)
    inverse_kernel[(1,)](below, found)
    wanted = torch.linalg.inv(torch.eye(64).double() + below.double())
    assert relative_error(found, wanted) < 1e-4
    assert torch.equal(found.triu(), torch.eye(64)), "what is not below the diagonal was touched"


def test_quick_functions_hold_at_both_ends() -> None:
    from strata.kernels.delta_read.functions import quick_sigmoid, quick_silu
    from tests.kernels.triton_row_probes import elementary_kernel

    x, found = torch.linspace(-80.0, 80.0, 256), torch.empty(256)
    for quick, wanted in ((quick_sigmoid, torch.sigmoid(x)), (quick_silu, torch.nn.functional.silu(x))):
        elementary_kernel[(1,)](x, found, FUNCTION=quick)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-37)


def test_two_parts_hold_sixteen_bits_of_every_size() -> None:
    from tests.kernels.triton_delta_read_probes import parts_kernel

    x = torch.randn(256, generator=torch.Generator().manual_seed(1)) * torch.logspace(-30, 30, 256)
    high, low = torch.empty(2, 256, dtype=torch.bfloat16)
    parts_kernel[(1,)](x, high, low)
    assert float(((high.double() + low.double() - x) / x).abs().max()) <= 2**-16
    assert bool((low.abs() <= high.abs() * 2**-8).all())


def test_rows_outside_the_read_are_zeros_and_gates_take_any_number_of_heads() -> None:
    from strata.kernels.delta_read import triton
    from strata.kernels.delta_read.inputs import GATES_AT_ONCE

    shape = DeltaRowsShape(key_heads=1, value_heads=GATES_AT_ONCE + 3, key_dim=16, value_dim=16, conv_kernel=2)
    case, work = read_case(shape, 40), DeltaReadWork.empty(64, shape, "cpu")
    vectors, projected = case.vectors.layer(0), case.projected[0]
    launch = triton.DeltaReadLaunch(rows=64)
    triton.make_inputs(projected, -20, 64, case.states.conv_tail[0, 0], vectors, shape, work, launch)
    is_outside = (torch.arange(64) < 20) | (torch.arange(64) >= 60)
    assert bool((work.queries[:, is_outside] == 0).all()) and bool((work.keys[:, is_outside] == 0).all())
    assert bool((work.values[0][:, is_outside] == 0).all()) and bool((work.values[0][:, ~is_outside] != 0).any())
    b, a = projected[:, -2 * shape.value_heads :].double().split(shape.value_heads, dim=1)
    since = (vectors.decay_rate * torch.nn.functional.softplus(a + vectors.decay_bias)).cumsum(dim=0).t()
    beta, high, low, from_start, to_end = (gate[0].double() for gate in work.gates)
    torch.testing.assert_close(beta[:, 20:60], torch.sigmoid(b).t(), rtol=1e-6, atol=0)
    assert bool((beta[:, :20] == 0).all()) and bool((beta[:, 60:] == 0).all())
    torch.testing.assert_close((high + low)[:, 20:60], since, rtol=1e-6, atol=0)
    assert bool(((high + low)[:, :20] == 0).all()) and torch.equal(high[:, 60:], high[:, 59:60].expand(-1, 4))
    torch.testing.assert_close(from_start, (high + low).exp(), rtol=1e-5, atol=1e-37)
    torch.testing.assert_close(to_end, (high[:, -1:] + low[:, -1:] - high - low).exp(), rtol=1e-5, atol=1e-37)


def test_where_nothing_is_written_states_decay_from_chunk_to_chunk() -> None:
    from strata.kernels.delta_read import triton
    from strata.kernels.delta_read.rule import ROWS

    work, state = DeltaReadWork.empty(2 * ROWS.value, SIGMOID, "cpu"), torch.randn(2, 16, 32)
    for part in (work.keys, work.values, work.solved):
        part.zero_()
    work.gates.fill_(float("nan"))
    work.gates[3], work.gates[4] = torch.linspace(1.0, 0.25, ROWS.value), 1.0
    after = state.clone()
    triton.run_rule(2, after, SIGMOID, work, triton.DeltaReadLaunch())
    found = work.states.double().sum(dim=0).unflatten(1, (2, 32)).mT
    torch.testing.assert_close(found, torch.stack((state, state / 4)).double(), rtol=2**-16, atol=0)
    torch.testing.assert_close(after, state / 16, rtol=0, atol=0)
    assert bool((work.written == 0).all())


def test_queries_recall_the_state_and_what_earlier_rows_wrote() -> None:
    from strata.kernels.delta_read import triton
    from strata.kernels.delta_read.outputs import ROWS

    case, work = read_case(SIGMOID, ROWS.value), DeltaReadWork.empty(ROWS.value, SIGMOID, "cpu")
    generator, out = torch.Generator().manual_seed(1), torch.empty(ROWS.value, 64, dtype=torch.bfloat16)
    for part in (work.queries, work.scores, work.states, work.written):
        part.copy_(torch.randn(part.shape, generator=generator))
    work.gates.copy_(torch.rand(work.gates.shape, generator=generator))
    vectors, shape = case.vectors.layer(0), SIGMOID
    triton.make_outputs(case.projected[0], 0, ROWS.value, vectors, shape, work, out, None, triton.DeltaReadLaunch())
    query, score, state = (part.double() for part in (work.queries, work.scores, work.states))
    written = work.written[0].unflatten(0, (2, 32)).double()  # [heads, columns, 2, rows]
    parts = [(0, 0), (0, 1), (1, 0)]  # both second parts together are left out
    of_state = sum(query[i] @ state[j, 0].unflatten(0, (2, 32)).mT for i, j in parts) * work.gates[3, 0, :, :, None]
    recalled = of_state + sum(score[i, 0] @ written[:, :, j].mT for i, j in parts)
    gate = torch.sigmoid(case.projected[0, :, shape.conv_width :][:, :64]).unflatten(1, (2, 32)).transpose(0, 1)
    inverse = torch.rsqrt((recalled * recalled).mean(dim=-1, keepdim=True) + shape.eps)
    wanted = (recalled * inverse * vectors.norm_scale * gate).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-5)
