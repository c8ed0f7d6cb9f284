"""Two groups of slots on one device: every token is that of one group and of a request alone, whatever happens."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from strata.engine.request import TokenRequest
from strata.engine.stage_model import StageModel
from strata.engine.steps import Window
from strata.errors import DeviceLostError
from strata.experts.tiers import ExpertTiers
from strata.native import library
from strata.native.pool import Pool
from strata.types import FinishReason
from tests.engine.grouped_stages import grouped_served, swapping_beside
from tests.engine.served import Served, ask
from tests.engine.stages import EVERY_STATE, described
from tests.engine.tabled_stages import in_memory, published, tabled
from tests.engine.tiered_stages import Tiering, built, tiered
from tests.experts.busy_pool import slowed, stick
from tests.random_text import token_ids_of

needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
MODEL = ("qwen3_moe", "code8")
SLOTS = 3
DRAWN: dict[str, Any] = {"temperature": 0.9, "seed": 11, "top_p": 0.9, "top_k": 40}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


def requests(tokens: int = 7) -> list[TokenRequest]:
    """Greedy and drawn, with and without stops, one whose penalties only the host knows."""
    return [
        ask(token_ids_of(10, 1), tokens),
        ask(token_ids_of(33, 2), tokens + 4, **DRAWN),
        ask(token_ids_of(7, 4), tokens // 2, temperature=1.0, seed=7, frequency_penalty=0.5),
        ask(token_ids_of(5, 3), tokens + 2, range(0, 96, 9), temperature=1.3, seed=5),
        ask(token_ids_of(10, 1), tokens, temperature=2.0, seed=8),
    ]


def replies_of(served: Served, wanted: list[TokenRequest]) -> list[list[int]]:
    for number, request in enumerate(wanted):
        served.submit(number, request)
    served.finish()
    assert not [end.error for end in served.ends.values() if end.error is not None]
    return [served.replies[number] for number in range(len(wanted))]


@pytest.mark.parametrize("family", EVERY_STATE)
def test_replies_are_those_of_requests_alone(family: str) -> None:
    alone = grouped_served(*described(family), 1, 1, is_ahead=False)
    wanted = [alone.ask(request) for request in requests()]
    assert replies_of(grouped_served(*described(family), 2, SLOTS), requests()) == wanted


def test_turns_go_on_from_a_slot_of_either_group_and_from_marks() -> None:
    family = "qwen3_5_moe"
    alone = grouped_served(*described(family), 1, 1, is_ahead=False)
    served = grouped_served(*described(family), 2, SLOTS)
    prompts = [token_ids_of(66 + 3 * number, 20 + number) for number in range(3)]
    for number, prompt in enumerate(prompts):
        served.submit(number, ask(prompt, 60, temperature=1.0, seed=number))
    while min(len(reply) for reply in served.replies.values()) < 20:
        served.turn()
    for number, kept in enumerate((18, 3, 19)):
        served.scheduler.cancel(number, kept)
    turns = [
        ask([*prompt, *served.replies[number][:kept], *token_ids_of(2, number)], 6)
        for number, (prompt, kept) in enumerate(zip(prompts, (18, 3, 19), strict=True))
    ]
    for number, turn in enumerate(turns):
        served.submit(10 + number, turn)
    served.finish()
    assert all(served.ends[10 + number].usage.cached_tokens > 60 for number in range(3))
    assert [served.replies[10 + number] for number in range(3)] == [alone.ask(turn) for turn in turns]


def tiers_of(description: Any) -> ExpertTiers:
    tiers = description.tiers
    assert isinstance(tiers, ExpertTiers)
    return tiers


def is_at_rest(tiers: ExpertTiers) -> bool:
    return not any(len(windows) or tiers._service.state(n).is_in_flight for n, windows in enumerate(tiers.windows))


@needs_library
@pytest.mark.parametrize(
    ("tiering", "is_slow"),
    [(Tiering(0.25, 0.3, groups=2), True), (Tiering(0.0, groups=2, waits_in_stream=True), False)],
)
def test_each_group_asks_in_a_mailbox_of_its_own(tiering: Tiering, is_slow: bool, pool: Pool) -> None:
    wanted = replies_of(grouped_served(*built(*MODEL), 1, SLOTS), requests())
    with slowed(pool) if is_slow else nullcontext(), tiered(*MODEL, tiering, pool) as (model, description):
        assert replies_of(grouped_served(model, description, 2, SLOTS), requests()) == wanted
        tiers = tiers_of(description)
        assert is_at_rest(tiers)
        counts = tiers.counts()
        assert counts.on_cpu == counts.cpu.experts > 0
        assert all(tiers._service.state(group).answered > 0 for group in range(2))
        assert tiers.asked.sum() == counts.seats + counts.in_place + counts.on_cpu, "none is counted twice or lost"


@needs_library
@pytest.mark.parametrize("is_exclusive", [False, True])
def test_seats_follow_the_windows_of_both_groups(is_exclusive: bool, pool: Pool) -> None:
    wanted = replies_of(grouped_served(*built(*MODEL), 1, SLOTS), requests(12))
    tiering = Tiering(0.25, 0.3, is_exclusive=is_exclusive, groups=2)
    with tiered(*MODEL, tiering, pool) as (model, description):
        served, tiers = grouped_served(model, description, 2, SLOTS), tiers_of(description)
        with swapping_beside(served, description, tiers._places) as swapper:  # type: ignore[arg-type]
            assert replies_of(served, requests(12)) == wanted
            assert swapper.swaps > 4
            tiers.hold_seats()
            for windows in tiers.windows:
                windows.launched()
                windows.landed()
            for layer in range(len(tiers.tables)):
                first, second = (tiers.layer(layer, group).tables for group in range(2))
                assert torch.equal(first.resident, second.resident)
                assert torch.equal(first.in_place, second.in_place)


@needs_library
def test_rows_of_tables_in_files_are_asked_for_by_each_group_in_its_own_mailboxes() -> None:
    whole = in_memory(published())
    wanted = replies_of(grouped_served(whole.built, whole.description, 1, SLOTS), requests(4))
    with tabled(published(), groups=2) as found:
        assert replies_of(grouped_served(found.built, found.description, 2, SLOTS), requests(4)) == wanted
        assert [len(windows) for windows in found.tables.windows] == [0, 0]
        asked = [found.tables.table(index, group).state.number for group in range(2) for index in range(2)]
        assert min(map(int, asked)) > 3


@needs_library
def test_slots_may_change_groups_at_any_step(pool: Pool) -> None:
    wanted = replies_of(grouped_served(*built(*MODEL), 1, SLOTS), requests(16)[:2])
    with tiered(*MODEL, Tiering(0.25, 0.3, groups=2), pool) as (model, description):
        served, chance = grouped_served(model, description, 2, SLOTS), random.Random(3)
        run = served.engine.run

        def moving(step: Any) -> Any:
            if isinstance(step, Window):
                groups = {slot: chance.randrange(2) for slot in step.most_drafts}
                step = Window(step.most_drafts, step.goes_on, groups)
            return run(step)

        served.engine.run = moving  # type: ignore[method-assign]
        assert replies_of(served, requests(16)[:2]) == wanted


@needs_library
def test_an_answer_that_fails_ends_the_replies_of_its_group_alone(pool: Pool) -> None:
    plain = grouped_served(*built(*MODEL), 1, 2)
    wanted = plain.ask(requests(16)[0])
    with tiered(*MODEL, Tiering(0.0, groups=2), pool) as (model, description):
        served, tiers = grouped_served(model, description, 2, 2), tiers_of(description)
        for number, request in enumerate(requests(16)[:2]):
            served.submit(number, request)
        while min(len(reply) for reply in served.replies.values()) < 3:
            served.turn()
        assert [len(windows) for windows in tiers.windows] == [1, 1], "each group has one ahead"
        ask_for_a_layer_that_is_none(tiers, 1)
        served.finish()
        assert served.ends[1].reason is FinishReason.ERROR
        assert "experts on the CPU failed in layer 7, which is none" in (served.ends[1].error or "")
        assert served.replies[0] == wanted
        assert is_at_rest(tiers)
        assert served.ask(requests(16)[1]) == grouped_served(*built(*MODEL), 1, 1).ask(requests(16)[1])


@needs_library
def test_a_pool_that_stops_answering_ends_all_groups_in_time() -> None:
    with Pool(2) as pool, tiered(*MODEL, Tiering(0.0, groups=2), pool, 0.2) as (model, description):
        served = grouped_served(model, description, 2, 2)
        for number, request in enumerate(requests(16)[:2]):
            served.submit(number, request)
        while min(len(reply) for reply in served.replies.values()) < 3:
            served.turn()
        stuck = stick(pool, 1.5)
        for _ in range(2):
            with pytest.raises(DeviceLostError, match=r"gave no answer in layer 0 .*started again"):
                served.finish()
        assert all("gave no answer" in str(lost_by(windows)) for windows in tiers_of(description).windows)
        stuck.join()


@needs_library
def test_what_is_in_flight_when_all_is_forgotten_has_landed(pool: Pool) -> None:
    with tiered(*MODEL, Tiering(0.0, groups=2), pool) as (model, description):
        served, tiers = grouped_served(model, description, 2, 2), tiers_of(description)
        for number, request in enumerate(requests(16)[:2]):
            served.submit(number, request)
        while min(len(reply) for reply in served.replies.values()) < 3:
            served.turn()
        assert isinstance(served.engine.model, StageModel)
        assert (served.engine.model.waiting_for or "").count("1 windows are in flight") == 2
        served.engine.forget_all()
        assert is_at_rest(tiers)


def ask_for_a_layer_that_is_none(tiers: ExpertTiers, group: int) -> None:
    """Returns when the answer, a failure, is there."""
    mailbox, before = tiers.mailboxes[group], tiers._service.state(group).failures
    mailbox.header.copy_(torch.tensor([7, 1, 1]))
    tiers.states[group].number.add_(1)
    mailbox.door.add_(1)
    while tiers._service.state(group).failures == before:
        pass


def lost_by(windows: Any) -> DeviceLostError:
    with pytest.raises(DeviceLostError) as caught:
        windows.launched()
    return caught.value
