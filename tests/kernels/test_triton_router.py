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
