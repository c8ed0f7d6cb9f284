"""The service: requests are spread and ended whatever the engine's process does, and it is started again."""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable

import pytest

from strata.engine.messages import Cancel, Drawn, Ended, LoadFailed, ReadProgress, Stop
from strata.engine.request import TokenRequest
from strata.errors import TextError
from strata.sampling.options import SamplingOptions
from strata.server.condition import Condition, Phase, RestartPolicy
from strata.server.errors import ApiError
from strata.server.service import EngineService, Submission
from strata.types import FinishReason
from tests.server.fake_engine import Reply, Script

QUICK = RestartPolicy(first_seconds=0.02, most_seconds=0.05)
REQUEST = TokenRequest((5, 6, 7), SamplingOptions(max_tokens=4))


def with_service(
    work: Callable[[EngineService, Script], Awaitable[None]],
    script: Script | None = None,
    wait: bool = True,
    **settings: object,
) -> None:
    script = script or Script()

    async def main() -> None:
        service = EngineService(script.launch, lambda facts: None, policy=QUICK, **settings)  # type: ignore[arg-type]
        service.start()
        try:
            if wait:
                await until(lambda: service.condition.is_ready)
            await work(service, script)
        finally:
            await service.close()

    asyncio.run(main())


async def until(is_so: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


async def all_of(submission: Submission) -> list[tuple[int, object]]:
    events = []
    while (event := await submission.next()) is not None:
        events.append(event)
    return events


def test_events_come_by_choice_and_end() -> None:
    async def work(service: EngineService, script: Script) -> None:
        events = await all_of(service.submit([REQUEST, dataclasses.replace(REQUEST, choice=1)]))
        for choice in (0, 1):
            mine = [event for place, event in events if place == choice]
            assert isinstance(mine[0], ReadProgress)
            assert isinstance(mine[-1], Ended)
            assert sum(len(event.draws) for event in mine if isinstance(event, Drawn)) == 4
        assert service.running == 0

    with_service(work)


def test_closing_cancels_what_still_runs() -> None:
    async def work(service: EngineService, script: Script) -> None:
        submission = service.submit([REQUEST, REQUEST])
        await submission.next()
        submission.close()
        assert await submission.next() is None
        assert service.running == 0
        await until(lambda: not script.engine.running)
        assert [m for m in script.engine.received if isinstance(m, Cancel)] == [Cancel(1), Cancel(2)]

    with_service(work, Script(lambda request: Reply(seconds_a_token=10)))


def test_one_choice_can_end_early_and_says_what_was_kept() -> None:
    async def work(service: EngineService, script: Script) -> None:
        submission = service.submit([REQUEST, REQUEST])
        submission.end(0, keep_tokens=2)
        assert {choice for choice, _ in await all_of(submission)} == {1}
        assert Cancel(1, 2) in script.engine.received

    with_service(work)


def test_too_many_are_told_to_come_back() -> None:
    async def work(service: EngineService, script: Script) -> None:
        held = service.submit([REQUEST] * 5)  # two slots and three that wait
        with pytest.raises(ApiError, match="at most 5 may") as refusal:
            service.submit([REQUEST])
        assert refusal.value.status == 429
        assert refusal.value.retry_after
        held.close()
        service.submit([REQUEST])

    with_service(work, Script(lambda request: Reply(seconds_a_token=10)), max_waiting=3)


@pytest.mark.parametrize("phase", ["waiting", "reading", "decoding"])
def test_a_death_ends_running_requests_with_its_reason_and_the_engine_comes_back(phase: str) -> None:
    slow = Reply(read_seconds=10 if phase == "reading" else 0, seconds_a_token=10)

    async def work(service: EngineService, script: Script) -> None:
        submissions = [service.submit([REQUEST]) for _ in range(3 if phase == "waiting" else 1)]
        await asyncio.sleep(0.05)
        died = time.monotonic()
        script.engine.die()
        with pytest.raises(ApiError, match=r"^this reply was lost: .*signal 9; the engine is being started") as loss:
            await all_of(submissions[-1])
        assert loss.value.status == 503
        assert loss.value.retry_after
        assert time.monotonic() - died < 1
        script.reply = lambda request: Reply()
        await until(lambda: service.condition.is_ready)
        assert service.restarts == 1
        assert (await all_of(service.submit([REQUEST])))[-1][1].reason is FinishReason.LENGTH

    with_service(work, Script(lambda request: slow))


def test_between_two_engines_requests_hear_when_to_come_back() -> None:
    async def work(service: EngineService, script: Script) -> None:
        script.load_seconds = 5
        script.engine.die()
        await until(lambda: service.condition.phase is Phase.RESTARTING)
        with pytest.raises(ApiError, match="started again") as refusal:
            service.submit([REQUEST])
        assert (refusal.value.status, refusal.value.code, refusal.value.retry_after) == (503, "restarting", 2)

    with_service(work)


def test_a_silent_engine_is_ended_and_started_again() -> None:
    async def work(service: EngineService, script: Script) -> None:
        submission = service.submit([REQUEST])
        script.engine.stall()
        with pytest.raises(ApiError, match="no sign of life"):
            await all_of(submission)
        await until(lambda: service.condition.is_ready)
        assert len(script.engines) == 2

    with_service(work, Script(lambda request: Reply(seconds_a_token=10)))


def test_what_dies_at_load_again_and_again_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def work(service: EngineService, script: Script) -> None:
        await until(lambda: service.condition.phase is Phase.FAILED)
        assert len(script.engines) == QUICK.most_load_failures
        with pytest.raises(ApiError, match=r"cannot be kept running: .* code 1") as refusal:
            service.submit([REQUEST])
        assert refusal.value.retry_after is None

    with_service(work, Script(dies_at_load=True), wait=False)
    *deaths, last = [record.getMessage() for record in caplog.records if record.name == "strata.server"]
    assert len(deaths) == QUICK.most_load_failures
    assert all(each.startswith("the engine is being started again: ") for each in deaths)
    assert last.startswith("the engine cannot be kept running: ")


def test_a_users_mistake_is_not_tried_twice() -> None:
    async def work(service: EngineService, script: Script) -> None:
        await until(lambda: service.condition.phase is Phase.FAILED)
        await asyncio.sleep(0.1)
        assert len(script.engines) == 1
        assert service.failure_is_users_mistake
        assert service.last_failure == "there is no model"

    with_service(work, Script(load_error=LoadFailed("there is no model", True)), wait=False)


def test_a_model_whose_text_cannot_be_used_is_refused() -> None:
    async def work(service: EngineService, script: Script) -> None:
        await until(lambda: service.condition.phase is Phase.FAILED)
        assert service.condition.sentence == "no tokenizer"

    def prepare(facts: object) -> None:
        raise TextError("no tokenizer")

    script = Script()

    async def main() -> None:
        service = EngineService(script.launch, prepare, policy=QUICK)
        service.start()
        try:
            await work(service, script)
        finally:
            await service.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_loaded", [False, True])
def test_only_an_engine_that_was_ready_is_asked_to_stop(is_loaded: bool) -> None:
    async def work(service: EngineService, script: Script) -> None:
        await until(lambda: bool(script.engines))

    script = Script(load_seconds=0 if is_loaded else 60)
    with_service(work, script, wait=is_loaded)
    assert (Stop() in script.engine.received) == is_loaded
    assert script.engine.was_killed


def test_draining_finishes_what_runs_and_takes_nothing_new() -> None:
    async def work(service: EngineService, script: Script) -> None:
        submission = service.submit([REQUEST])
        draining = asyncio.create_task(service.drain(5, asyncio.Event()))
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="is stopping"):
            service.submit([REQUEST])
        assert isinstance((await all_of(submission))[-1][1], Ended)
        await asyncio.wait_for(draining, 1)

    with_service(work, Script(lambda request: Reply(seconds_a_token=0.02)))


@pytest.mark.parametrize("ended_by", ["time", "abort"])
def test_draining_ends_what_takes_too_long(ended_by: str) -> None:
    async def work(service: EngineService, script: Script) -> None:
        submission = service.submit([REQUEST])
        abort = asyncio.Event()
        draining = asyncio.create_task(service.drain(0.1 if ended_by == "time" else 60, abort))
        if ended_by == "abort":
            await asyncio.sleep(0.05)
            abort.set()
        with pytest.raises(ApiError, match="stopped before this reply was complete"):
            await all_of(submission)
        await asyncio.wait_for(draining, 1)

    with_service(work, Script(lambda request: Reply(seconds_a_token=10)))


def test_the_policy_waits_longer_each_time_and_then_gives_up() -> None:
    policy = RestartPolicy(1, 10, most_load_failures=3, most_deaths=8)
    assert [policy.wait_seconds(0, deaths) for deaths in range(1, 8)] == [1, 2, 4, 8, 10, 10, 10]
    assert policy.wait_seconds(0, 8) is None
    assert policy.wait_seconds(2, 2) == 2
    assert policy.wait_seconds(3, 3) is None


def test_a_refusal_says_how_far_loading_has_come() -> None:
    condition = Condition(Phase.LOADING, "the model is being loaded", "reading weights", 1_000, 20_000)
    assert str(condition.refusal()) == "the model is being loaded (reading weights: 1,000 of 20,000)"
