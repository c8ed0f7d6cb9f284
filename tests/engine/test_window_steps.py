"""Groups of slots whose windows run side by side and late: the replies of one window at a time, in any traffic."""

import random

import pytest

from strata.engine.engine import TokenEngine
from strata.engine.request import TokenRequest
from strata.engine.steps import Open, Read, Step, Window
from tests.engine.late_device import VOCABULARY, fresh_reply
from tests.engine.late_groups import LateGroups
from tests.engine.served import SETTINGS, Served, ask
from tests.engine.test_windows_ahead import prompt_of


def opened(device: LateGroups, replies: int, tokens: int) -> TokenEngine:
    engine = TokenEngine(device, SETTINGS, ahead=device.ahead())
    for slot in range(replies):
        engine.run(Open(slot, ask(prompt_of(5 + slot, slot), tokens)))
        while any(result.is_under_way for result in engine.run(Read(slot, 5 + slot))):
            pass
    return engine


def tokens_of(engine: TokenEngine, step: Step) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for result in engine.run(step):
        assert result.error is None
        found.setdefault(result.slot, []).extend(draw.token_id for draw in result.draws)
    return found


def test_every_groups_next_window_is_launched_before_the_first_one_lands() -> None:
    device = LateGroups(4, 2, random.Random(0))
    engine = opened(device, 4, 20)
    groups = {0: 0, 1: 1, 2: 0, 3: 1}
    for _ in range(3):
        found = tokens_of(engine, Window(dict.fromkeys(range(4), 0), goes_on=True, groups=groups))
        assert {slot: len(tokens) for slot, tokens in found.items()} == dict.fromkeys(range(4), 1)
    assert [group.launches for group in device.groups] == [[(0, 2)] * 4, [(1, 3)] * 4]
    assert [group.landed for group in device.groups] == [3, 3]
    assert device.most_side_by_side == 2


def test_a_slot_that_moves_lands_where_it_was_and_the_other_slots_with_it() -> None:
    device = LateGroups(3, 2, random.Random(0))
    engine = opened(device, 3, 20)
    before, after = {0: 0, 1: 0, 2: 1}, {0: 0, 1: 1, 2: 1}
    tokens_of(engine, Window({0: 0, 1: 0, 2: 0}, goes_on=True, groups=before))
    found = tokens_of(engine, Window({0: 0, 1: 0, 2: 0}, goes_on=True, groups=after))
    assert {slot: len(tokens) for slot, tokens in found.items()} == {0: 2, 1: 2, 2: 2}, "what was ahead, and the next"
    assert device.groups[0].launches[-1] == (0,) and device.groups[1].launches[-1] == (1, 2)
    assert found == {slot: fresh_reply(prompt_of(5 + slot, slot), 4)[2:] for slot in range(3)}


def test_the_hosts_windows_of_a_group_leave_the_other_one_alone() -> None:
    device = LateGroups(2, 2, random.Random(0), frozenset([77]))
    engine = TokenEngine(device, SETTINGS, ahead=device.ahead())
    for slot, seed in enumerate((1, 77)):
        engine.run(Open(slot, ask(prompt_of(5 + slot, slot), 20, seed=seed)))
        while any(result.is_under_way for result in engine.run(Read(slot, 5 + slot))):
            pass
    wanted = [fresh_reply(prompt_of(5 + slot, slot), 6) for slot in range(2)]
    for count in range(1, 6):
        found = tokens_of(engine, Window({0: 0, 1: 0}, goes_on=True, groups={0: 0, 1: 1}))
        assert found == {slot: wanted[slot][count : count + 1] for slot in range(2)}
    assert (len(device.groups[0].launches), device.groups[0].landed, device.windows) == (6, 5, 5)


@pytest.mark.parametrize("seed", range(40))
def test_any_traffic_gives_the_replies_of_one_window_at_a_time(seed: int) -> None:
    """Through the scheduler: prompts that share beginnings, stops, cancels, replies that only the host chooses for."""
    chance = random.Random(seed)
    slots = chance.choice([2, 3, 5])
    groups = chance.choice([2, 2, min(3, slots)])
    device = LateGroups(slots, groups, random.Random(seed), frozenset([77]))
    served = Served(TokenEngine(device, SETTINGS, ahead=device.ahead()), slots, groups)
    texts = [prompt_of(chance.randrange(1, 140), salt) for salt in range(3)]
    requests: dict[int, TokenRequest] = {}
    cancelled: dict[int, int | None] = {}
    number = 0
    while number < 16 or served.scheduler.has_work:
        if number < 16 and chance.random() < 0.3:
            number += 1
            base = chance.choice(texts)
            prompt = [*base[: chance.randrange(1, len(base) + 1)], *prompt_of(chance.randrange(0, 4), number)]
            stop = chance.sample(range(VOCABULARY), chance.choice([0, 0, 3]))
            requests[number] = ask(prompt, chance.randrange(1, 50), stop, seed=chance.choice([1, 1, 1, 77]))
            served.submit(number, requests[number])
        served.turn()
        running = [each for each, reply in served.replies.items() if reply and each not in served.ends]
        if running and chance.random() < 0.06:
            gone = chance.choice(running)
            cancelled[gone] = chance.choice([None, chance.randrange(0, len(served.replies[gone]) + 1)])
            served.scheduler.cancel(gone, cancelled[gone])
        for each in served.ends:
            if chance.random() < 0.02:
                texts.append([*requests[each].prompt, *served.replies[each][: cancelled.get(each)], 1])
    for each, request in requests.items():
        assert served.ends[each].error is None
        wanted = fresh_reply(request.prompt, request.options.max_tokens or 0)
        ends = [place for place, token in enumerate(wanted) if token in request.stop_token_ids]
        wanted = wanted[: ends[0] + 1] if ends else wanted
        found = served.replies[each]
        assert found == (wanted[: len(found)] if each in cancelled else wanted)
    served.engine.forget_all()
    assert len(device.free) == slots


class Lazy(random.Random):
    """Nothing is done before somebody waits for it."""

    def randrange(self, *_: object) -> int:
        return 0


@pytest.mark.parametrize("rows", range(14, 17))
def test_a_mark_is_whole_when_its_slot_is_written_elsewhere(rows: int) -> None:
    """The copy lies behind the last window on its group's road: other roads, and the main one, come behind it."""
    for moves in (False, True):
        device = LateGroups(2, 2, Lazy())
        engine, prompt = opened(device, 1, 60), prompt_of(5)
        found = fresh_reply(prompt, 1)
        for group in [0] * rows + [1] * (12 if moves else 0):
            found += tokens_of(engine, Window({0: 0}, goes_on=True, groups={0: group}))[0]
        found += tokens_of(engine, Open(1, ask([1, 2], 5)))[0]
        kept = [*prompt, *found[: rows + 2]]
        engine.run(Open(0, ask([*kept, 3], 5), source=0, position=len(kept) - 1))
        results = engine.run(Read(0, len(kept) + 1))
        while any(result.is_under_way for result in results):
            results = engine.run(Read(0, len(kept) + 1))
        assert [draw.token_id for draw in results[-1].draws] == fresh_reply([*kept, 3], 1)


def test_with_moves_at_any_moment_the_replies_are_the_same() -> None:
    """The scheduler moves few; here every step has groups of its own."""
    for seed in range(20):
        chance = random.Random(seed)
        device = LateGroups(4, 3, random.Random(seed))
        engine = opened(device, 4, 60)
        found = {slot: fresh_reply(prompt_of(5 + slot, slot), 1) for slot in range(4)}
        groups = dict.fromkeys(range(4), 0)
        for _ in range(20):
            if chance.random() < 0.4:
                groups = {slot: chance.randrange(3) for slot in range(4)}
            numbers = [slot for slot in range(4) if chance.random() < 0.9]
            step = Window(dict.fromkeys(numbers, 0), goes_on=chance.random() < 0.8, groups=groups)
            for slot, tokens in tokens_of(engine, step).items():
                found[slot] += tokens
        for slot, tokens in found.items():
            assert tokens == fresh_reply(prompt_of(5 + slot, slot), len(tokens))
