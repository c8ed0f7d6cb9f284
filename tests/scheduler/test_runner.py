"""Requests of one process: callers drive each other's requests, leave, cancel, and hear of a turn broken off."""

import threading

import pytest

from strata.engine.control import RunControl
from strata.engine.request import RunEnded, TokenRequest, TokensDrawn
from strata.errors import DeviceLostError
from strata.scheduler.due import Limits
from strata.scheduler.runner import RequestRunner
from strata.scheduler.scheduler import Scheduler
from strata.types import FinishReason
from tests.scheduler.simulated import SimulatedEngine, reply_token, request


def make(slots: int = 2) -> tuple[RequestRunner, SimulatedEngine]:
    engine = SimulatedEngine()
    return RequestRunner(lambda: Scheduler(engine, Limits(slots), engine.clock, engine.sleep)), engine


def tokens_of(runner: RequestRunner, asked: TokenRequest) -> list[int]:
    events = list(runner.run(asked, RunControl()))
    return [draw.token_id for event in events if isinstance(event, TokensDrawn) for draw in event.draws]


def expected(asked: TokenRequest) -> list[int]:
    return [reply_token(asked, index) for index in range(asked.options.max_tokens or 0)]


def test_nothing_happens_before_the_first_event_is_asked_for() -> None:
    runner, engine = make()
    runner.run(request((1, 2)), RunControl())
    assert engine.steps == []


def test_more_requests_than_slots_in_threads_of_their_own() -> None:
    runner, _ = make(slots=2)
    asked = [request((n, 2 * n, 5), 20) for n in range(1, 9)]
    replies: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda n=n, each=each: replies.update({n: tokens_of(runner, each)}))
        for n, each in enumerate(asked)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [replies[n] for n in range(8)] == [expected(each) for each in asked]


def test_one_thread_may_wait_for_the_last_of_several() -> None:
    runner, _ = make(slots=1)
    runs = [runner.run(request((n, 5), 6), RunControl()) for n in (1, 2, 3)]
    first = next(runs[0])
    assert isinstance(first, TokensDrawn)
    assert [type(event) for event in runs[2]][-1] is RunEnded  # the others ran to their ends meanwhile
    assert [type(event) for event in runs[0]][-1] is RunEnded


def test_a_caller_that_leaves_makes_room() -> None:
    runner, _ = make(slots=1)
    left = runner.run(request((1, 2), 100_000), RunControl())
    next(left)
    left.close()
    assert tokens_of(runner, request((3, 4), 5)) == expected(request((3, 4), 5))


def test_a_conversation_ends_where_its_caller_found_the_end() -> None:
    runner, _ = make(slots=1)
    asked, control = request(tuple(range(1, 101)), 50), RunControl()
    events = runner.run(asked, control)
    for _ in range(9):
        next(events)
    control.keep(6)
    events.close()
    turn = request((*asked.prompt, *expected(asked)[:6], 900, 901), 1)
    *_, last = list(runner.run(turn, RunControl()))
    assert isinstance(last, RunEnded)
    assert last.usage.cached_tokens == 100 + 5


def test_cancel_ends_a_run_with_its_reason() -> None:
    runner, _ = make()
    control = RunControl()
    events = runner.run(request((1, 2), 100_000), control)
    next(events)
    control.cancel()
    (last,) = list(events)
    assert isinstance(last, RunEnded)
    assert (last.reason, last.usage.completion_tokens) == (FinishReason.CANCELLED, 1)


def test_progress_is_reported_as_it_comes() -> None:
    runner, _ = make()
    seen: list[tuple[str, int, int]] = []
    list(runner.run(request(tuple(range(1, 1101)), 1), RunControl(lambda *progress: seen.append(progress))))
    assert seen == [("reading the prompt", done, 1100) for done in (0, 512, 1024, 1100)]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (KeyboardInterrupt(), "the engine was interrupted while it ran"),
        (DeviceLostError("the GPU failed while it computed"), "the GPU failed while it computed"),
    ],
)
def test_a_turn_that_is_broken_off_ends_every_run_and_the_next_one_works(failure: BaseException, reason: str) -> None:
    runner, engine = make()
    other = runner.run(request((1, 2), 50), RunControl())
    next(other)
    run = engine.run

    def interrupted(step: object) -> None:
        raise failure

    engine.run = interrupted  # type: ignore[assignment,method-assign]
    with pytest.raises(type(failure)):
        list(runner.run(request((3, 4), 50), RunControl()))
    engine.run = run  # type: ignore[method-assign]
    *_, last = list(other)
    assert isinstance(last, RunEnded)
    assert (last.reason, last.error) == (FinishReason.ERROR, reason)
    assert tokens_of(runner, request((5, 6), 7)) == expected(request((5, 6), 7))
