"""A clock that is set back costs nobody anything."""

from strata.engine.messages import Drawn, Ended
from strata.scheduler.clock import SteadyClock
from strata.scheduler.due import Limits
from strata.scheduler.scheduler import Scheduler
from tests.scheduler.simulated import SimulatedEngine, request


def test_time_never_goes_back_and_goes_on_behind_a_jump() -> None:
    clock = SteadyClock(iter([5.0, 6.0, 2.0, 2.5, 1.0, 1.25, 90.0]).__next__)
    assert [clock() for _ in range(6)] == [6.0, 6.0, 6.5, 6.5, 6.75, 95.5]


def test_a_clock_that_is_set_back_for_hours_keeps_every_promise() -> None:
    """The gap is held behind it, and no time that anybody is told is below zero."""
    engine, set_back = SimulatedEngine(), 0.0
    scheduler = Scheduler(engine, Limits(2), lambda: engine.now - set_back, engine.sleep)
    scheduler.submit(1, request((1, 2, 3), 10**6))
    while not scheduler.statistics().reply_tokens:
        scheduler.turn()
    scheduler.submit(2, request(tuple(range(4000)), 3))
    gaps, last, ended = [], engine.now, None
    while ended is None:
        for event in scheduler.turn():
            if isinstance(event, Drawn) and event.request_id == 1:
                gaps.append(engine.now - last)
                last = engine.now
            ended = event if isinstance(event, Ended) else ended
        set_back = 7200.0 if len(gaps) > 3 else 0.0
    assert max(gaps) < 0.2  # one step went unseen at the jump
    assert sorted(gaps)[-2] <= 0.11
    usage = ended.usage
    assert min(usage.read_seconds, usage.decode_seconds, usage.waiting_seconds) >= 0
