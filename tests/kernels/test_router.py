"""Routing by its definition: the block's choices and weights, ties, unused rows, the list of work, what is refused."""

import pytest
import torch

from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.router import Routes, SharedGate, route_rows
from strata.kernels.router.reference import list_work
from strata.models.blocks.moe import MoeShape, route
from tests.kernels.window_cases import window_of


def routed(logits: torch.Tensor, ranks: int, normalize: bool = True, unused: int = 0) -> Routes:
    rows = logits.shape[0]
    made = Routes.empty(rows, ranks, "cpu", has_shared_gate=False)
    route_rows(logits, window_of([(0, rows - unused)], rows), normalize, made)
    return made


@pytest.mark.parametrize("normalize", [True, False])
def test_choices_and_weights_are_those_of_the_block(normalize: bool) -> None:
    x = torch.randn(7, 12, generator=torch.Generator().manual_seed(0))
    weights = torch.randn(33, 12, generator=torch.Generator().manual_seed(1))
    made = routed(x @ weights.T, 5, normalize)
    ids, wanted = route(x, weights, MoeShape(33, 5, normalize))
    assert torch.equal(made.ids.long(), ids)
    assert torch.allclose(made.weights, wanted, rtol=1e-5, atol=0)


def test_of_equal_logits_the_lower_id_is_first() -> None:
    made = routed(torch.tensor([[1.0, 2.0, 2.0, -0.0, 0.0, 2.0]]), 5)
    assert made.ids.tolist() == [[1, 2, 5, 0, 3]]


def test_logits_may_lie_in_a_wider_matrix() -> None:
    wide = torch.randn(3, 20, generator=torch.Generator().manual_seed(2))
    assert torch.equal(routed(wide[:, 4:12], 3).ids, routed(wide[:, 4:12].contiguous(), 3).ids)


def test_unused_rows_go_nowhere() -> None:
    made = routed(torch.randn(4, 9, generator=torch.Generator().manual_seed(3)), 2, unused=3)
    assert made.ids[1:].eq(-1).all() and made.weights[1:].eq(0).all()
    assert listed(made.work) == {int(expert): [rank] for rank, expert in enumerate(made.ids[0])}


def listed(work: ExpertWork) -> dict[int, list[int]]:
    """Places by seat; entries without places are left out."""
    starts, places = work.starts.tolist(), work.places.tolist()
    entries = enumerate(work.seats.tolist())
    return {seat: places[starts[e] : starts[e + 1]] for e, seat in entries if starts[e] < starts[e + 1]}


def test_the_work_is_each_distinct_expert_once() -> None:
    ids = torch.tensor([[5, 2], [2, 9], [-1, -1], [9, 5]], dtype=torch.int32)
    work = ExpertWork.empty(4, 2, "cpu")
    list_work(ids, work)
    assert listed(work) == {2: [1, 2], 5: [0, 7], 9: [3, 6]}
    assert [work.rows[place].item() for place in range(6)] == [0, 1, 0, 3, 1, 3]
    assert work.starts.tolist() == [0, 2, 2, 4, 4, 6, 6, 6, 6]
    of_choices = ExpertWork.from_choices(ids[[0, 1, 3]])
    assert listed(of_choices) == {2: [1, 2], 5: [0, 5], 9: [3, 4]}


def test_the_shared_gate_is_a_sigmoid_of_the_row() -> None:
    x, gate = torch.randn(3, 40, generator=torch.Generator().manual_seed(4)), torch.linspace(-1, 1, 40)
    made = Routes.empty(3, 1, "cpu", has_shared_gate=True)
    route_rows(torch.randn(3, 4), window_of([(0, 3)], 3), True, made, SharedGate(x, gate))
    assert made.shared_weights is not None
    assert torch.allclose(made.shared_weights, torch.sigmoid(x @ gate), rtol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    window, made = window_of([(0, 2)], 2), Routes.empty(2, 3, "cpu", has_shared_gate=False)
    with pytest.raises(ValueError, match=r"float32 \[2, experts\]"):
        route_rows(torch.zeros(3, 8), window, True, made)
    with pytest.raises(ValueError, match="a row goes to 3"):
        route_rows(torch.zeros(2, 2), window, True, made)
    with pytest.raises(ValueError, match="window of 5"):
        route_rows(torch.zeros(2, 8), window_of([(0, 5)], 5), True, made)
    with pytest.raises(ValueError, match="together or not at all"):
        route_rows(torch.zeros(2, 8), window, True, made, SharedGate(torch.zeros(2, 4), torch.zeros(4)))
    with_gate = Routes.empty(2, 3, "cpu", has_shared_gate=True)
    with pytest.raises(ValueError, match=r"x must be contiguous float32 \[2, 4\]"):
        route_rows(torch.zeros(2, 8), window, True, with_gate, SharedGate(torch.zeros(2, 5), torch.zeros(4)))
    many = Routes.empty(33, 1, "cpu", has_shared_gate=False)
    with pytest.raises(ValueError, match="33 rows in one window; 32 are the most"):
        route_rows(torch.zeros(33, 8), window_of([(0, 33)], 33), True, many)
