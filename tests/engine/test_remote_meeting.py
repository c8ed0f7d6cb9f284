"""Processes agree on a plan before anything is loaded; what does not go together is refused, and all are told."""

import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from strata.engine import remote_meeting
from strata.engine.memory_plan import GIB, Budget, Budgets
from strata.engine.remote_joining import Joined
from strata.engine.remote_line import Line
from strata.engine.remote_meeting import (
    Meeting,
    agreed_budgets,
    follow,
    have_cards_of_their_own,
    lead,
    offer_of,
)
from strata.engine.remote_ranks import Ranks
from strata.engine.stage_calls import ANSWERS, CALLS, End, PartOffer
from strata.errors import DeviceLostError, ModelError, SettingsError
from strata.settings import EngineSettings

SETTINGS = EngineSettings(stages=True, slots=2)
CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)


def offer(
    device: torch.device = CPU, ram: int = 8, settings: EngineSettings = SETTINGS, host: str = "here"
) -> PartOffer:
    budgets = Budgets("a card", Budget(8 * GIB, 8 * GIB), Budget(64 * GIB, ram * GIB))
    return replace(offer_of(budgets, device, settings), host=host)


class Plans:
    """See `StagePlans`, of which a meeting asks this."""

    def __init__(self, budgets: Sequence[Budgets], cuts: Sequence[int], slots: int = 2) -> None:
        self.budgets, self.slots, self.context = budgets, slots, 512
        self.refusal: str | None = None
        self.split = type("Split", (), {"cuts": tuple(cuts)})()
        self.plans = ()


def meet(
    monkeypatch: pytest.MonkeyPatch,
    offers: Sequence[PartOffer],
    plan: Callable[..., Any] = lambda budgets: Plans(budgets, (3,)),
    others_plan: Callable[..., Any] = Plans,
) -> list[Any]:
    """What the meeting gives each of two ranks: its result or its failure."""
    monkeypatch.setattr(remote_meeting, "_open_ways", lambda *_: [])
    ours, theirs = socket.socketpair()
    found: list[Any] = [None, None]
    first, second = (Ranks(rank, 2, rank, "here", 1, is_hosted=True) for rank in range(2))

    def other() -> None:
        line = Line(theirs, CALLS)
        try:
            found[1] = follow(second, line, offers[1], others_plan)
        except Exception as failure:
            found[1] = failure
            line.close()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        found[0], lines = lead(Joined(first, [Line(ours, ANSWERS)]), offers[0], plan)
        thread.join()
        for line in lines:
            line.end()
    except Exception as failure:
        found[0] = failure
    thread.join()
    return found


def test_every_process_plans_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    leads, follows = meet(monkeypatch, [offer(ram=8), offer(ram=6)])
    assert isinstance(leads, Meeting)
    assert isinstance(follows, Meeting)
    ours, theirs = (plans.budgets for plans in (leads.plans, follows.plans) if isinstance(plans, Plans))
    assert ours == theirs
    assert [each.ram.free for each in ours] == [6 * GIB, 6 * GIB]
    assert follows.plans.split.cuts == (3,)


def test_what_is_refused_ends_all_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(budgets: Sequence[Budgets]) -> Any:
        plans = Plans(budgets, (3,))
        plans.refusal = "the model needs 9 GiB"
        return plans

    leads, follows = meet(monkeypatch, [offer(), offer()], refused)
    assert isinstance(leads, ModelError)
    assert follows == End("the model needs 9 GiB")


def test_a_process_with_another_plan_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    _, follows = meet(monkeypatch, [offer(), offer()], others_plan=lambda budgets, cuts: Plans(budgets, cuts, slots=4))
    assert isinstance(follows, ModelError)
    assert "rank 1 plans 4 slots of 512 tokens and rank 0 2 of 512" in str(follows)


@pytest.mark.parametrize(
    ("offers", "problem"),
    [
        (
            [offer(), offer(settings=replace(SETTINGS, kv_kind="k8v4"))],
            "setting kv_kind: rank 1 was started with 'k8v4' and rank 0 with 'bf16'",
        ),
        ([offer(CARD), offer()], "rank 1 computes on cpu and rank 0 on cuda:0"),
    ],
)
def test_ranks_that_do_not_go_together_are_named(offers: list[PartOffer], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        agreed_budgets(offers)


def test_what_is_ones_own_may_differ() -> None:
    own = replace(SETTINGS, threads=3, expert_profile="other", vram_gib=2.0)
    assert len(agreed_budgets([offer(CARD), offer(CARD, settings=own, host="there")])) == 2


def test_a_card_that_two_ranks_have_is_shared_and_not_joined_by_nccl() -> None:
    both = [replace(offer(CARD), has_nccl=True) for _ in range(2)]
    shared = agreed_budgets(both)
    assert [each.card.free for each in shared] == [4 * GIB, 4 * GIB]
    assert [each.reserve for each in shared] == [both[0].budgets.reserve // 2] * 2
    assert not have_cards_of_their_own(both)
    apart = [both[0], replace(both[1], host="there")]
    assert agreed_budgets(apart)[0].card.free == 8 * GIB
    assert have_cards_of_their_own(apart)
    assert not have_cards_of_their_own([both[0], replace(apart[1], has_nccl=False)])
    assert not have_cards_of_their_own([offer(), offer()])


def test_a_rank_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()

    def failing(budgets: Sequence[Budgets]) -> Any:
        raise AssertionError("nobody plans without the other rank")

    with pytest.raises(DeviceLostError, match="stage of rank 1 is lost"):
        lead(Joined(Ranks(0, 2, 0, "here", 1, is_hosted=True), [Line(ours, ANSWERS)]), offer(), failing)
