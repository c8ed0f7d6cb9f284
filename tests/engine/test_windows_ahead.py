"""One window ahead of the host: the same tokens, none lost and none twice, whatever comes in between."""

import random

import pytest

from strata.engine.engine import TokenEngine
from strata.engine.request import TokenRequest
from strata.engine.steps import Open, Read, Window
from strata.engine.windows_ahead import WindowsAhead
from strata.types import FinishReason
from tests.engine.late_device import VOCABULARY, LateDevice, fresh_reply
from tests.engine.served import SETTINGS, Served, ask


def serve(device: LateDevice, slots: int) -> Served:
    """An engine over the device, one window ahead."""
    return Served(TokenEngine(device, SETTINGS, ahead=[WindowsAhead(device)]), slots)


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(place * 7 + salt * 3) % VOCABULARY for place in range(length)]


def test_the_next_window_is_launched_before_the_last_one_has_landed() -> None:
    device = LateDevice(1)
    served = serve(device, 1)
    served.submit(1, ask(prompt_of(5), 9))
    served.finish()
    assert served.replies[1] == fresh_reply(prompt_of(5), 9)
    assert device.most_in_flight == 2
    assert len(device.launches) == 8, "the first token comes from reading, and no window is launched in vain"
    assert device.windows == 0


def test_a_stop_token_ends_a_reply_though_its_next_window_was_launched() -> None:
    reply = fresh_reply(prompt_of(9), 40)
    stop = reply[11]
    wanted = reply[: reply.index(stop) + 1]
    device = LateDevice(1)
    served = serve(device, 1)
    served.submit(1, ask(prompt_of(9), 40, [stop]))
    served.finish()
    assert served.replies[1] == wanted
    assert served.ends[1].reason is FinishReason.STOP
    assert len(device.launches) == len(wanted), "one more than it has windows"
    served.submit(2, ask([*prompt_of(9), *wanted, 5], 7))
    served.finish()
    assert served.replies[2] == fresh_reply([*prompt_of(9), *wanted, 5], 7)
    assert served.ends[2].usage.cached_tokens == 9 + len(wanted) - 1, "a kept turn"


def test_a_read_lands_what_is_in_flight_first() -> None:
    device = LateDevice(2)
    engine = TokenEngine(device, SETTINGS, ahead=[WindowsAhead(device)])
    first, second = prompt_of(4), prompt_of(6, 1)
    engine.run(Open(0, ask(first, 20)))
    engine.run(Read(0, 4))
    engine.run(Read(0, 4))
    replies = fresh_reply(first, 5)
    assert [result.draws[0].token_id for result in engine.run(Window({0: 0}, goes_on=True))] == replies[1:2]
    assert len(device.launches) - device.landed == 1
    late, opened = engine.run(Open(1, ask(second, 20)))
    assert (late.slot, late.draws[0].token_id, opened.slot, opened.draws) == (0, replies[2], 1, ())
    assert len(device.launches) == device.landed
    assert [result.is_under_way for result in engine.run(Read(1, 6))] == [True]
    (read,) = engine.run(Read(1, 6))
    assert read.draws[0].token_id == fresh_reply(second, 1)[0]
    both = engine.run(Window({0: 0, 1: 0}, goes_on=False))
    assert [(result.slot, result.draws[0].token_id) for result in both] == [
        (0, replies[3]),
        (1, fresh_reply(second, 2)[1]),
    ]
    assert len(device.launches) == device.landed, "nothing goes on: nothing is launched ahead"


def test_every_window_is_counted_once() -> None:
    device = LateDevice(2)
    served = serve(device, 2)
    served.submit(1, ask(prompt_of(4), 30))
    while len(served.replies[1]) < 5:
        served.turn()
    served.submit(2, ask(prompt_of(300, 1), 9))
    served.finish()
    assert served.scheduler.statistics().windows == device.landed == len(device.launches)
    assert served.engine.experts() == {"vram": 4 + 29 + 300 + 8}


def test_a_reply_that_this_side_must_choose_for_brings_all_windows_back() -> None:
    device = LateDevice(2, host_chooses=frozenset([77]))
    served = serve(device, 2)
    served.submit(1, ask(prompt_of(4), 60, seed=1))
    for _ in range(10):
        served.turn()
    ahead = len(device.launches)
    assert ahead > 5 and device.windows == 0
    served.submit(2, ask(prompt_of(6, 1), 10, seed=77))
    served.finish()
    assert device.windows == 9
    assert len(device.launches) > ahead + 5, "behind it the device chooses again"
    assert served.replies == {1: fresh_reply(prompt_of(4), 60), 2: fresh_reply(prompt_of(6, 1), 10)}


@pytest.mark.parametrize("kept", [0, 1, 2, 7, 15, 16, 17, 30, 33, 40, None])
def test_a_cancelled_reply_goes_on_from_its_last_kept_token(kept: int | None) -> None:
    device = LateDevice(1)
    served = serve(device, 1)
    prompt = prompt_of(70)
    served.submit(1, ask(prompt, 300))
    while len(served.replies[1]) < 42:
        served.turn()
    served.scheduler.cancel(1, kept)
    served.finish()
    said = served.replies[1][:kept]
    assert said == fresh_reply(prompt, len(said))
    following = [*prompt, *said, 9, 9]
    served.submit(2, ask(following, 20))
    served.finish()
    assert served.replies[2] == fresh_reply(following, 20)
    assert served.ends[2].usage.cached_tokens == (70 + len(said) - 1 if len(said) > 1 else 64)


def test_numbers_that_are_not_finite_end_one_reply_and_no_other() -> None:
    device = LateDevice(2)
    served = serve(device, 2)
    served.submit(1, ask(prompt_of(4), 30))
    served.submit(2, ask(prompt_of(6, 1), 30))
    while len(served.replies[2]) < 3:
        served.turn()
    served.engine._slots[0].state.place.breaks_at = 15
    served.finish()
    assert served.replies[1] == fresh_reply(prompt_of(4), 12)
    assert served.ends[1].reason is FinishReason.ERROR and "not finite" in (served.ends[1].error or "")
    assert served.replies[2] == fresh_reply(prompt_of(6, 1), 30)
    served.submit(3, ask(prompt_of(4), 30))
    served.finish()
    assert served.replies[3] == fresh_reply(prompt_of(4), 30), "the place is a fresh one"


def test_a_cancelled_reply_that_fails_late_leaves_an_empty_slot() -> None:
    device = LateDevice(2)
    served = serve(device, 2)
    served.submit(1, ask(prompt_of(4), 30))
    served.submit(2, ask(prompt_of(6, 1), 30))
    while len(served.replies[2]) < 3:
        served.turn()
    assert device.landed < len(device.launches)
    state = served.engine._slots[0].state
    state.place.breaks_at = state.position  # for the window in flight
    served.scheduler.cancel(1)
    served.finish()
    assert served.ends[1].reason is FinishReason.CANCELLED
    served.submit(3, ask([*prompt_of(4), *served.replies[1], 3], 6))
    served.finish()
    assert served.ends[3].usage.cached_tokens == 0
    assert served.replies[3] == fresh_reply([*prompt_of(4), *served.replies[1], 3], 6)


def test_everything_forgotten_gives_every_place_back() -> None:
    device = LateDevice(2)
    served = serve(device, 2)
    for number in (1, 2):
        served.submit(number, ask(prompt_of(4, number), 30))
    for _ in range(12):
        served.turn()
    served.engine.forget_all()
    assert len(device.free) == 2
    fresh = serve(device, 2)
    fresh.submit(1, ask(prompt_of(4), 30))
    fresh.finish()
    assert fresh.replies[1] == fresh_reply(prompt_of(4), 30)


@pytest.mark.parametrize("seed", range(60))
def test_any_traffic_gives_the_replies_of_one_window_at_a_time(seed: int) -> None:
    """Prompts that share beginnings, stops, cancels that keep some of the reply, replies of either side's choosing."""
    chance = random.Random(seed)
    slots = chance.choice([1, 2, 3])
    device = LateDevice(slots, host_chooses=frozenset([77]))
    served = serve(device, slots)
    texts = [prompt_of(chance.randrange(1, 140), salt) for salt in range(3)]
    requests: dict[int, TokenRequest] = {}
    cancelled: dict[int, int | None] = {}
    number = 0
    while number < 14 or served.scheduler.has_work:
        if number < 14 and chance.random() < 0.25:
            number += 1
            base = chance.choice(texts)
            prompt = [*base[: chance.randrange(1, len(base) + 1)], *prompt_of(chance.randrange(0, 4), number)]
            stop = chance.sample(range(VOCABULARY), chance.choice([0, 0, 3]))
            choosing = chance.choice([1, 1, 1, 77])
            requests[number] = ask(prompt, chance.randrange(1, 50), stop, seed=choosing)
            served.submit(number, requests[number])
        served.turn()
        running = [each for each, reply in served.replies.items() if reply and each not in served.ends]
        if running and chance.random() < 0.06:
            gone = chance.choice(running)
            cancelled[gone] = chance.choice([None, chance.randrange(0, len(served.replies[gone]) + 1)])
            served.scheduler.cancel(gone, cancelled[gone])
        for each, end in served.ends.items():
            if chance.random() < 0.02:
                kept = cancelled.get(each)
                texts.append([*requests[each].prompt, *served.replies[each][:kept], 1])
            assert end.error is None
    for each, request in requests.items():
        wanted = fresh_reply(request.prompt, request.options.max_tokens or 0)
        ends = [place for place, token in enumerate(wanted) if token in request.stop_token_ids]
        wanted = wanted[: ends[0] + 1] if ends else wanted
        found = served.replies[each]
        assert found == (wanted[: len(found)] if each in cancelled else wanted)
    served.engine.forget_all()
    assert len(device.free) == slots
