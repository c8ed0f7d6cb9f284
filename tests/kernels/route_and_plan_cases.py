"""Routing and planning in one launch held against both definitions, and against the router's own launch bit by bit.

For the interpreter and for a GPU. Knows what `expert_plan_cases` knows.
"""

from dataclasses import dataclass

import torch

from strata.kernels.expert_plan.tables import RowScores
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.router import Routes, SharedGate
from tests.kernels.expert_plan_cases import (
    LAYERS,
    PlanCase,
    answer,
    answering,
    assert_same,
    compare_sides,
    moved_tables,
)
from tests.kernels.window_cases import window_of

OF_WORK = ("seats", "starts", "places", "rows")


@dataclass(frozen=True)
class RouteAndPlanCase:
    """A plan's case of one row whose experts come from logits, many of them equal."""

    plan: PlanCase
    has_shared: bool = True
    normalize: bool = True

    def check(self, device: torch.device) -> None:
        """Raise AssertionError unless every turn is that of the definitions, rows collected included."""
        from strata.kernels.expert_plan import collect, one_row, reference

        plan, cpu = self.plan, torch.device("cpu")
        found, wanted = plan.side(device), plan.side(cpu)
        with answering(found.mailbox) as answers:
            for turn, layer in enumerate(LAYERS):
                x, tables, what = plan.activations(turn), plan.tables(turn), f"{self}, turn {turn}"
                mine, theirs = moved_tables(tables, device), moved_tables(tables, cpu)
                routes, wanted_routes = self._room(device), self._room(cpu)
                rows = plan.rows_for(x, device)
                scores, by_definition = self._scores(turn, x, device), self._scores(turn, x, cpu)
                one_row.route_and_plan(scores, routes, rows, mine, found.mailbox, layer, *found.plan)
                as_it_is = RowsOut(x, None)
                reference.route_and_plan(
                    by_definition, wanted_routes, as_it_is, theirs, wanted.mailbox, layer, *wanted.plan
                )  # fmt: skip
                collect.collect_rows(found.mailbox, found.state, found.planned, found.by_rank)
                answer(wanted.mailbox, int(wanted.mailbox.door))
                reference.collect_rows(wanted.mailbox, wanted.state, wanted.planned, wanted.by_rank)
                compare_sides(what, (found, mine), (wanted, theirs))
                self._compare_routes(what, scores, routes, wanted_routes)
        assert answers.count == int(wanted.mailbox.door), f"{self}: rang {answers.count} times"

    def _scores(self, turn: int, x: torch.Tensor, device: torch.device) -> RowScores:
        generator = torch.Generator().manual_seed(turn + self.plan.experts)
        logits = (torch.randn(1, self.plan.experts + 3, generator=generator) * 3)[:, 1:-2]
        logits[:, ::3] = logits[:, ::3].round()  # ties
        gate = torch.randn(self.plan.hidden, generator=generator) * 0.05
        window = window_of([(0, 1 - self.plan.unused)], 1, device=device)
        shared = SharedGate(x.to(device), gate.to(device)) if self.has_shared else None
        return RowScores(logits.to(device), window, self.normalize, shared)

    def _compare_routes(self, what: str, scores: RowScores, found: Routes, wanted: Routes) -> None:
        from strata.kernels.router import triton

        alone = self._room(found.ids.device)
        triton.route_rows(scores.logits, scores.rows, scores.normalize, alone, scores.shared)
        pairs = [("ids", found.ids, wanted.ids), ("weights", found.weights, alone.weights)]
        pairs += [(name, getattr(found.work, name), getattr(wanted.work, name)) for name in OF_WORK]
        if found.shared_weights is not None and alone.shared_weights is not None:
            pairs += [("shared weights", found.shared_weights, alone.shared_weights)]
        for name, mine, theirs in pairs:
            assert_same(f"{what}: {name}", _bits(mine), _bits(theirs))

    def _room(self, device: torch.device) -> Routes:
        """Memory with stale values in it."""
        made = Routes.empty(1, self.plan.ranks, device, self.has_shared)
        for tensor in (made.ids, *(getattr(made.work, name) for name in OF_WORK)):
            tensor.fill_(77)
        made.weights.fill_(float("nan"))
        return made


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.cpu().flatten()
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


ONE_ROW = (
    RouteAndPlanCase(PlanCase(1, 3, 9, 64)),
    RouteAndPlanCase(PlanCase(1, 6, 12, 96, is_quantized=False, share=0.5, spare_rows=3), normalize=False),
    RouteAndPlanCase(PlanCase(1, 4, 9, 32, unused=1)),
    RouteAndPlanCase(PlanCase(1, 8, 40, 64, in_seats=1.0), has_shared=False),
    RouteAndPlanCase(PlanCase(1, 8, 40, 160, in_seats=0.0, share=1.0, pinned=1.0)),
    RouteAndPlanCase(PlanCase(1, 10, 512, 2560, in_seats=0.3)),
    RouteAndPlanCase(PlanCase(1, 16, 4096, 96, in_seats=0.0, share=0.4)),
)
