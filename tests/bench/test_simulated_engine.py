"""The engine without a model takes a machine's time, and refuses what the scheduler may not ask for."""

from dataclasses import replace

import pytest

from strata.bench.simulated_engine import SimulatedEngine, reply_token
from strata.bench.simulated_machine import Machine
from strata.engine.request import TokenRequest
from strata.engine.steps import Abandon, Open, Read, Window
from strata.errors import EngineError
from strata.sampling.options import SamplingOptions
from strata.types import FinishReason

MACHINE = Machine(
    "two", layers=4, chunk_rows=64, row_seconds=0.001, window_seconds=0.01, stream_seconds=0.002, slots=4, stages=2,
    groups=2, run_seconds=0.5, drain_seconds=0.1,
)  # fmt: skip


def request(rows: int, tokens: int = 3, first: int = 0) -> TokenRequest:
    return TokenRequest(tuple(range(first, first + rows)), SamplingOptions(max_tokens=tokens))


def read(engine: SimulatedEngine, step: Read) -> list[int | None]:
    """To its end; how many rows each step told of."""
    told = []
    while True:
        (result,) = engine.run(step)
        told.append(result.read_rows)
        if not result.is_under_way:
            return told


def begun(engine: SimulatedEngine, slot: int, asked: TokenRequest) -> None:
    engine.run(Open(slot, asked))
    read(engine, Read(slot, len(asked.prompt)))


def test_a_run_takes_its_beats_and_tells_of_chunks_that_have_passed_all_stages() -> None:
    engine = SimulatedEngine(MACHINE)
    engine.run(Open(0, request(150)))
    told = read(engine, Read(0, 150, (64,)))
    assert engine.now == pytest.approx(0.5 + 0.001 * (64 + 64 + 64 + 22))
    assert told == [None, None, None, 64, None, 128, None, None]
    assert engine.slots[0].tokens == list(range(150)) and engine.slots[0].points == [64, 128]


def test_a_drained_run_begins_later_and_windows_behind_it_fill_the_stages() -> None:
    drained, passing = SimulatedEngine(MACHINE, drains=True), SimulatedEngine(MACHINE, drains=False)
    for engine in (drained, passing):
        begun(engine, 0, request(64))
        engine.run(Open(1, request(64, first=1000)))
        before = engine.now
        engine.run(Window({0: 0}, groups={0: 0}))
        read(engine, Read(1, 64))
        engine.now -= before + 0.5 + 0.001 * 128
    assert passing.now == pytest.approx(0.012)
    assert drained.now == pytest.approx(0.012 + 0.1)


def test_steps_wait_for_experts_on_the_way_and_windows_do_not_hold_those_up() -> None:
    machine = replace(MACHINE, stages=1, groups=1, run_seconds=0.0, link_seconds=4.0)
    with_windows = {}
    for windows in (0, 1):
        engine = SimulatedEngine(machine)
        begun(engine, 0, request(64, tokens=100))
        engine.run(Open(1, request(64, first=1000)))
        before, step = engine.now, Read(1, 64)
        while engine.run(step)[0].is_under_way:
            assert engine.read_ahead.spare > 0.9
            for _ in range(windows):
                engine.run(Window({0: 0}))
        with_windows[windows] = engine.now - before
    assert with_windows[0] == with_windows[1] == pytest.approx(4.0, abs=0.02)


def test_a_reply_is_its_requests_and_ends_where_it_was_asked_to() -> None:
    engine, asked = SimulatedEngine(MACHINE), request(64, tokens=2)
    engine.run(Open(0, asked))
    step = Read(0, 64)
    while (result := engine.run(step)[0]).is_under_way:
        pass
    (last,) = engine.run(Window({0: 0}, groups={0: 0}))
    assert [draw.token_id for draw in (*result.draws, *last.draws)] == [reply_token(asked, 0), reply_token(asked, 1)]
    assert last.reason is FinishReason.LENGTH


def test_a_read_that_is_given_up_leaves_its_last_point() -> None:
    engine = SimulatedEngine(replace(MACHINE, stages=1, groups=1))
    engine.run(Open(0, request(300)))
    read(engine, Read(0, 64, (64,)))
    engine.run(Read(0, 128))
    engine.run(Abandon(0))
    assert engine.slots[0].tokens == list(range(64)) and engine.slots[0].piece is None
    engine.run(Open(1, request(200), source=0, position=64))
    assert engine.slots[1].tokens == list(range(64))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Read(0, 100), "a cut off the grid"),
        (Read(0, 64), "goes on where it ended"),
        (Window({0: 0}), "for replies that are under way"),
        (Open(1, request(70, first=9), source=0, position=64), "what is continued is there"),
        (Open(1, request(100), source=0, position=40), "a way back"),
        (Open(1, request(100), position=64), "an empty slot begins at 0"),
        (Abandon(0), "only what is under way"),
    ],
)
def test_what_the_scheduler_may_not_ask_for_is_refused(step: Open | Read | Window | Abandon, words: str) -> None:
    engine = SimulatedEngine(MACHINE)
    engine.run(Open(0, request(200)))
    read(engine, Read(0, 64, (64,)))
    with pytest.raises(EngineError, match=words):
        engine.run(step)
