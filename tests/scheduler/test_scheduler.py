"""Events of every phase, in order, on an engine that takes time: what comes, what a cancel ends, what is counted."""

from strata.engine.messages import Drawn, Ended, FromEngine, PromptRead, ReadProgress
from strata.engine.steps import Abandon, Open, Read
from strata.errors import RequestError
from strata.scheduler.due import Limits
from strata.scheduler.scheduler import Scheduler
from strata.scheduler.step_engine import StepEngine
from strata.types import FinishReason
from tests.scheduler.simulated import SimulatedEngine, reply_token, request

PROMPT = tuple(range(1000))


def make(slots: int = 2) -> tuple[Scheduler, SimulatedEngine]:
    engine = SimulatedEngine()
    steps: StepEngine = engine
    return Scheduler(steps, Limits(slots, chunk_rows=256), engine.clock, engine.sleep), engine


def finish(scheduler: Scheduler) -> list[FromEngine]:
    events = []
    while scheduler.has_work:
        events += scheduler.turn()
    return events


def until(scheduler: Scheduler, kind: type, number: int) -> list[FromEngine]:
    """Turns until the request's first event of a kind."""
    events = []
    while not any(isinstance(event, kind) and event.request_id == number for event in events):
        events += scheduler.turn()
    return events


def ended(events: list[FromEngine], number: int) -> Ended:
    (found,) = [event for event in events if isinstance(event, Ended) and event.request_id == number]
    return found


def test_events_of_one_request() -> None:
    scheduler, engine = make()
    assert not scheduler.has_work
    engine.now = 5.0
    scheduler.submit(7, request(PROMPT[:300], 3))
    engine.now = 6.0
    events = finish(scheduler)
    progress = [event for event in events if isinstance(event, ReadProgress)]
    assert [(event.done, event.total, event.cached) for event in progress] == [(n, 300, 0) for n in (0, 256, 300)]
    drawn = [event for event in events if isinstance(event, Drawn)]
    asked = request(PROMPT[:300], 3)
    assert [event.draws[0].token_id for event in drawn] == [reply_token(asked, index) for index in range(3)]
    last = events[-1]
    assert isinstance(last, Ended)
    usage = last.usage
    assert (last.reason, usage.completion_tokens, usage.windows) == (FinishReason.LENGTH, 3, 2)
    assert usage.waiting_seconds == 1.0
    assert abs(usage.read_seconds - 2 * 0.002 - 300 * 0.0005) < 1e-9
    assert abs(usage.decode_seconds - 2 * 0.012) < 1e-9
    assert not scheduler.has_work


def test_a_request_that_cannot_be_served_ends_as_its_callers_mistake() -> None:
    scheduler, engine = make()
    scheduler.submit(1, request(()))
    assert scheduler.has_work
    last = ended(finish(scheduler), 1)
    assert (last.reason, last.error, last.is_callers_mistake) == (FinishReason.ERROR, "the prompt is empty", True)
    assert engine.steps == []


def test_cancel_while_waiting() -> None:
    scheduler, engine = make(slots=1)
    scheduler.submit(1, request(PROMPT, 5))
    until(scheduler, ReadProgress, 1)
    scheduler.submit(2, request(PROMPT[:70], 5))
    scheduler.cancel(2)
    events = scheduler.turn()
    assert ended(events, 2).reason is FinishReason.CANCELLED
    finish(scheduler)
    assert [step.request.prompt for step in engine.steps if isinstance(step, Open)] == [PROMPT]


def test_cancel_while_reading_frees_the_slot_before_the_next_step() -> None:
    scheduler, engine = make(slots=1)
    scheduler.submit(1, request(PROMPT, 5))
    scheduler.submit(2, request((5, 6), 2))
    until(scheduler, ReadProgress, 1)
    scheduler.turn()
    scheduler.cancel(1)
    before = len(engine.steps)
    last = ended(scheduler.turn(), 1)
    assert (last.reason, last.usage.completion_tokens) == (FinishReason.CANCELLED, 0)
    scheduler.turn()
    assert [type(step) for step in engine.steps[before:]] == [Abandon, Open]  # the next request's
    assert ended(finish(scheduler), 2).reason is FinishReason.LENGTH


def test_cancel_while_decoding_counts_what_was_handed_out() -> None:
    scheduler, engine = make()
    scheduler.submit(1, request(PROMPT[:70], 500))
    until(scheduler, Drawn, 1)
    for _ in range(9):
        scheduler.turn()
    steps = len(engine.steps)
    scheduler.cancel(1, keep_tokens=6)
    last = ended(finish(scheduler), 1)
    assert (last.reason, last.usage.completion_tokens) == (FinishReason.CANCELLED, 6)
    assert len(engine.steps) == steps
    (slot, _) = scheduler.statistics().slots
    assert (slot.phase, slot.kept_tokens) == ("idle", 76)


def test_cancel_of_nothing_is_ignored() -> None:
    scheduler, _ = make()
    scheduler.cancel(5)
    scheduler.cancel(5, keep_tokens=3)
    assert not scheduler.has_work


def test_a_failure_ends_its_request_and_empties_its_slot() -> None:
    scheduler, engine = make()
    engine.fails_at = 777
    scheduler.submit(1, request(PROMPT, 5))
    scheduler.submit(2, request((5, 6), 2))
    events = finish(scheduler)
    last = ended(events, 1)
    assert (last.reason, last.error, last.is_callers_mistake) == (
        FinishReason.ERROR,
        "the numbers are not finite",
        False,
    )
    assert ended(events, 2).reason is FinishReason.LENGTH
    engine.fails_at = None
    scheduler.submit(3, request(PROMPT, 1))
    assert ended(finish(scheduler), 3).usage.cached_tokens == 0


class Slow:
    """A preparation that takes its time."""

    def __init__(self, engine: SimulatedEngine, done_at: float, mistake: str | None = None) -> None:
        self._engine, self._done_at, self._mistake = engine, done_at, mistake

    @property
    def is_done(self) -> bool:
        return self._engine.now >= self._done_at

    def result(self) -> str:
        if self._mistake is not None:
            raise RequestError(self._mistake)
        return "prepared"


def test_a_request_that_is_being_prepared_keeps_nobody_waiting() -> None:
    scheduler, engine = make(slots=1)
    engine.preparations[9] = Slow(engine, 4.0)
    scheduler.submit(1, request((9, 9), 2))
    scheduler.submit(2, request((5, 6), 2))
    events = finish(scheduler)
    first, second = [step for step in engine.steps if isinstance(step, Open)]
    assert (first.request.prompt, second.request.prompt) == ((5, 6), (9, 9))
    assert second.prepared == "prepared"
    assert ended(events, 1).usage.waiting_seconds >= 4.0
    assert engine.now < 4.2


def test_what_cannot_be_prepared_takes_no_slot() -> None:
    scheduler, engine = make(slots=1)
    engine.preparations[9] = Slow(engine, 0.0, "the schema is wrong")
    scheduler.submit(1, request((9, 9), 2))
    last = ended(finish(scheduler), 1)
    assert (last.error, last.is_callers_mistake) == ("the schema is wrong", True)
    assert engine.steps == []


def test_statistics_tell_of_slots_and_sums() -> None:
    scheduler, _ = make(slots=1)
    scheduler.submit(1, request(PROMPT, 5))
    scheduler.submit(2, request(PROMPT, 5))
    until(scheduler, ReadProgress, 1)
    until(scheduler, ReadProgress, 1)
    seen = scheduler.statistics()
    (slot,) = seen.slots
    assert (slot.phase, slot.request_id, slot.prompt_tokens, slot.read_tokens) == ("reading", 1, 1000, 256)
    assert (seen.waiting, seen.prompt_tokens) == (1, 256)
    until(scheduler, Drawn, 1)
    assert scheduler.statistics().slots[0].phase == "decoding"
    finish(scheduler)
    seen = scheduler.statistics()
    assert (seen.prompt_tokens, seen.cached_tokens, seen.reply_tokens, seen.windows) == (1040, 960, 10, 8)
    assert seen.busy_seconds > 0.5
    assert seen.memory == {"states": 1004}


def test_log_probabilities_of_a_prompt_come_before_its_first_token() -> None:
    scheduler, engine = make()
    run = engine.run

    def with_logprobs(step: object) -> object:
        results = run(step)  # type: ignore[arg-type]
        is_end = isinstance(step, Read) and results[0].draws
        return (type(results[0])(0, results[0].draws, prompt_logprobs=results[0].draws),) if is_end else results

    engine.run = with_logprobs  # type: ignore[assignment,method-assign]
    scheduler.submit(1, request((5, 6), 2))
    kinds = [type(event) for event in until(scheduler, Drawn, 1)]
    assert kinds[-2:] == [PromptRead, Drawn]
