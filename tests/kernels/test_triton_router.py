"""Triton's routing in its interpreter makes the choices and the work of the definition: `make interpreter`."""

import pytest
import torch

from tests.kernels.interpreter import needs_interpreter
from tests.kernels.router_cases import PUBLISHED, SMALL, RouterCase

pytestmark = needs_interpreter

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", [*SMALL, PUBLISHED[0], PUBLISHED[-1]], ids=str)
def test_choices_and_work_are_those_of_the_definition(case: RouterCase) -> None:
    case.check(CPU)


def test_a_row_is_routed_alike_among_any_others() -> None:
    from strata.kernels.router import Routes, triton
    from tests.kernels.window_cases import window_of

    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    together, alone = (Routes.empty(rows, 6, CPU, has_shared_gate=False) for rows in (4, 1))
    triton.route_rows(logits, window_of([(0, 4)], 4), True, together, None)
    for row in range(4):
        triton.route_rows(logits[row : row + 1], window_of([(2, 1)], 1), True, alone, None)
        assert torch.equal(alone.ids[0], together.ids[row])
        assert torch.equal(alone.weights[0].view(torch.int32), together.weights[row].view(torch.int32))


def test_logits_that_are_no_numbers_choose_experts_that_exist() -> None:
    from strata.kernels.router import Routes, triton
    from tests.kernels.window_cases import window_of

    logits = torch.tensor([0x7FFFFFFF, -1, 0x7F800000, -0x800000] * 2, dtype=torch.int32).view(torch.float32)
    made = Routes.empty(1, 8, CPU, has_shared_gate=False)
    triton.route_rows(logits[None], window_of([(0, 1)], 1), True, made, None)
    assert sorted(made.ids[0].tolist()) == list(range(8))


def test_rows_before_are_the_bits_below_a_row() -> None:
    # `bits_of` and `rows_before` of strata.kernels.router.list_work, with the word whose sign bit is row 31.
    from tests.kernels.triton_gate_probes import rows_before_kernel

    words = torch.randint(-(1 << 31), 1 << 31, (32,), generator=torch.Generator().manual_seed(3)).int()
    words[:2] = torch.tensor([-1, 0])
    rows, found = torch.arange(31, -1, -1).int(), torch.empty(32, dtype=torch.int32)
    rows_before_kernel[(1,)](words, rows, found)
    pairs = zip(words.tolist(), rows.tolist(), strict=True)
    assert found.tolist() == [(word & ((1 << row) - 1)).bit_count() for word, row in pairs]


def test_the_marks_of_a_launch_are_gone_for_the_next_of_another_size() -> None:
    from strata.kernels.router import Routes, reference, triton
    from tests.kernels.window_cases import window_of

    made = Routes.empty(5, 4, CPU, has_shared_gate=False)
    wanted = Routes.empty(5, 4, CPU, has_shared_gate=False)
    for turn, experts in enumerate((60, 9, 300, 60)):
        logits = torch.randn(5, experts, generator=torch.Generator().manual_seed(turn))
        window = window_of([(0, 5 - turn)], 5)
        triton.route_rows(logits, window, True, made, None)
        reference.route_rows(logits, window, True, wanted, None)
        for name in ("seats", "starts", "places", "rows"):
            assert torch.equal(getattr(made.work, name), getattr(wanted.work, name)), f"turn {turn}: {name}"
