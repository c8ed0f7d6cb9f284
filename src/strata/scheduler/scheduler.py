"""The loop that serves requests: take in, decide, run one step, commit, hand out.

Knows requests by number, slots by index, an engine that runs steps, and a clock; no model, no text, no thread. A turn
is one step, so whatever was asked in between - a new request, a cancel - takes effect before the next one.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from strata.engine.messages import Drawn, Ended, FromEngine, PromptRead, ReadProgress, SlotView, Statistics
from strata.engine.request import TokenRequest
from strata.engine.steps import Abandon, Open, Read, SlotResult, Step, Window
from strata.errors import RequestError
from strata.scheduler.admission import Admission
from strata.scheduler.clock import SteadyClock
from strata.scheduler.counters import Counters
from strata.scheduler.due import Limits, Pace, Stream, View, foreseen_gap, next_step
from strata.scheduler.parked import ParkedBooks
from strata.scheduler.read_modes import ReadMode
from strata.scheduler.reads import Reads
from strata.scheduler.request import Run
from strata.scheduler.slots import SlotBook
from strata.scheduler.step_engine import StepEngine
from strata.types import FinishReason, ReadAhead

PREPARING_SECONDS = 0.002  # between two looks at requests that are still being prepared, if there is nothing else


class Scheduler:
    """Serves any number of requests in a fixed number of slots. For one thread."""

    def __init__(
        self,
        engine: StepEngine,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._limits = replace(limits, reads_runs=engine.reads_runs)
        self._clock, self._sleep = SteadyClock(clock), sleep
        self._started = self._clock()
        self._slots = [SlotBook(index) for index in range(limits.slots)]
        self._parked = ParkedBooks(engine.parking, limits.slots, keep_turns=limits.keep_turns)
        self._admission = Admission(self._slots, self._parked, keep_turns=limits.keep_turns)
        self._running: dict[int, SlotBook] = {}  # by the request's number
        self._reads = Reads(self._limits)
        self._abandoned: deque[int] = deque()  # slots in which steps of a prompt are under way whose request has ended
        self._groups: dict[int, int] = {}  # of the last window's slots
        self._pace = Pace()
        self._oldest_token = 0.0  # of the running replies, when the last step was decided
        self._ahead = ReadAhead()  # of the prompt's read, when the last step was decided
        self._counters = Counters()
        self._out: list[FromEngine] = []

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self._out or len(self._admission) or self._running or self._abandoned)

    def submit(self, request_id: int, request: TokenRequest) -> None:
        """Take a request in. One that cannot be served ends at once, as its caller's mistake."""
        run = Run(request_id, request, self._clock())
        try:
            self._engine.check(request)
            run.preparation = self._engine.prepare(request)
        except RequestError as mistake:
            self._end(run, FinishReason.ERROR, str(mistake), is_callers_mistake=True)
            return
        self._admission.add(run)

    def cancel(self, request_id: int, keep_tokens: int | None = None) -> None:
        """End a request in whatever phase it is.

        keep_tokens: tokens of the reply that were handed out; the slot's conversation ends with them. Also taken when
        the reply has just ended by itself; numbers that are unknown by now are ignored.
        """
        waiting = self._admission.withdraw(request_id)
        slot = self._running.get(request_id)
        if waiting is not None:
            self._end(waiting, FinishReason.CANCELLED)
        elif slot is not None:
            assert slot.run is not None
            self._end(slot.run, FinishReason.CANCELLED, kept_reply=keep_tokens)
        elif keep_tokens is not None:
            self._admission.cut(request_id, keep_tokens)

    def turn(self) -> list[FromEngine]:
        """Run the step that is due, if there is one; returns what there is to tell, of this step and of before."""
        step = self._decide()
        if step is not None:
            began = self._clock()
            results = self._engine.run(step)
            now = self._clock()
            self._learn(step, results, now - began, now)
            for result in results:
                self._commit(result, now)
        elif not self._out and len(self._admission):
            self._sleep(PREPARING_SECONDS)
        out, self._out = self._out, []
        return out

    @property
    def waiting_for(self) -> str | None:
        """See `StepEngine`."""
        return self._engine.waiting_for

    @property
    def arrivals(self) -> int:
        """See `StepEngine`."""
        return self._engine.arrivals

    def statistics(self) -> Statistics:
        """The counters and the slots now."""
        return self._counters.statistics(
            seconds=self._clock() - self._started,
            waiting=len(self._admission),
            slots=tuple(map(_view, self._slots)),
            memory=self._engine.memory(),
            checkpoints=self._engine.checkpoints(),
            pages=self._engine.pages(),
            experts=self._engine.experts(),
            experts_are_rows=self._engine.experts_are_rows,
            experts_read=self._engine.experts_read(),
            parked=self._parked.counts(),
        )

    def _decide(self) -> Step | None:
        """What ends comes first, then whoever gets a slot, then windows and reads by `next_step`."""
        if self._abandoned:
            return Abandon(self._abandoned.popleft())
        opening = self._admit()
        if opening is not None:
            return opening
        streams = [
            Stream(slot.index, slot.run.last_token)
            for slot in self._running.values()
            if slot.run is not None and slot.run.last_token is not None
        ]
        reading = self._reads.current
        self._ahead = self._engine.read_ahead if reading is not None and streams else ReadAhead()
        granted = self._reads.grant(bool(streams), self._ahead.queued)
        if granted is not None:
            self._pace.owed_seconds = granted
        seen = None if reading is None else reading.seen()
        view = View(self._clock(), seen, streams, self._pace, self._ahead, self._groups)
        step = next_step(view, self._limits)
        self._oldest_token = min((stream.last_token for stream in streams), default=0.0)
        if isinstance(step, Read) and streams and self._limits.rule.mode is ReadMode.LAYERS:
            self._pace.foreseen_gap = foreseen_gap(view, self._limits)
        return step

    def _admit(self) -> Open | None:
        """Give a slot to the next request that may have one; a prompt that gave way goes on before that."""
        self._reads.go_on()
        while (run := self._admission.take_next(self._reads.current, self._limits.rule)) is not None:
            try:
                prepared = None if run.preparation is None else run.preparation.result()
            except RequestError as mistake:
                self._end(run, FinishReason.ERROR, str(mistake), is_callers_mistake=True)
                continue
            reads_as_windows = self._engine.reads_as_windows
            opening = self._admission.open(run, prepared, self._clock(), reads_as_windows=reads_as_windows)
            slot = self._running[run.request_id] = self._slots[opening.slot]
            self._counters.give_ways += self._reads.current is not None
            self._reads.begin(slot)
            return opening
        return None

    def _learn(self, step: Step, results: Sequence[SlotResult], seconds: float, now: float) -> None:
        """What a step says of the pace and of how far a prompt is. The last result is its own unless it is a window."""
        self._counters.busy_seconds += seconds
        if isinstance(step, Abandon):
            return
        if isinstance(step, Window):
            self._counters.windows += 1
            self._pace.note_window(seconds, self._ahead.queued, self._limits.rule.step_share)
            self._pace.note_gap(now - self._oldest_token, self._limits.max_gap)
            self._reads.note_window()
            self._groups = dict(step.groups)
            return
        *late, own = results
        self._counters.windows += bool(late)  # one was under way when the step came
        run = self._slots[step.slot].run
        assert run is not None, "a slot that is opened or reads has a request"
        if isinstance(step, Read):
            self._learn_read(step, own, run, seconds)
        else:
            self._admission.note_opened(step, own, run)
            if own.error is None:
                self._counters.cached_tokens += run.cached
                self._tell_progress(run)

    def _learn_read(self, step: Read, own: SlotResult, run: Run, seconds: float) -> None:
        rows = min(self._limits.chunk_rows, step.stop - run.read_rows)
        self._pace.note_read(seconds, self._limits.rule.step_share, rows)
        self._counters.runs += self._reads.note_step(step, own.is_under_way, seconds)
        read_rows = own.read_rows if own.is_under_way else step.stop
        if read_rows is None or read_rows == run.read_rows:
            return
        self._counters.prompt_tokens += read_rows - run.read_rows
        run.read_rows = read_rows
        if own.error is None:
            self._tell_progress(run)

    def _tell_progress(self, run: Run) -> None:
        self._out.append(ReadProgress(run.request_id, run.read_rows, len(run.request.prompt), run.cached))

    def _commit(self, result: SlotResult, now: float) -> None:
        """Write into the books what a step gave for one slot, and what is to be told of it.

        A window may have been under way when its reply was cancelled: what it gave belongs to nobody.
        """
        slot = self._slots[result.slot]
        run = slot.run
        for number, points in result.others.items():
            self._admission.note_points(number, points)
        if run is None:
            if result.error is not None:
                self._admission.lose(slot)
            return
        run.notices += result.notices
        if result.error is not None:
            self._end(run, FinishReason.ERROR, result.error, is_callers_mistake=result.is_callers_mistake)
            return
        if slot.points != result.points:
            self._admission.note_points(result.slot, result.points)
        if result.prompt_logprobs is not None:
            self._out.append(PromptRead(run.request_id, result.prompt_logprobs))
        if result.draws:
            if run.last_token is None:
                self._stop_reading(slot)
            run.take(result, now)
            self._counters.take(result)
            self._out.append(Drawn(run.request_id, result.draws, run.usage(now)))
        if result.reason is not None:
            self._end(run, result.reason)

    def _end(
        self,
        run: Run,
        reason: FinishReason,
        error: str | None = None,
        *,
        is_callers_mistake: bool = False,
        kept_reply: int | None = None,
    ) -> None:
        """The last thing that is told of a request; its slot is free."""
        slot = self._running.pop(run.request_id, None)
        if slot is not None:
            self._stop_reading(slot)
            if error is not None:
                self._admission.lose(slot)
            else:
                self._admission.release(slot, kept_reply)
        tokens = len(run.reply) if kept_reply is None else min(kept_reply, len(run.reply))
        usage = run.usage(self._clock(), tokens)
        self._out.append(Ended(run.request_id, reason, usage, error, is_callers_mistake, run.notices))

    def _stop_reading(self, slot: SlotBook) -> None:
        """If its prompt is being read or has given way: it is read, or its request has ended."""
        current = self._reads.current
        if current is not None and current.slot is slot:
            self._pace.owed_seconds = 0.0
        if self._reads.end(slot):
            self._abandoned.append(slot.index)


def _view(slot: SlotBook) -> SlotView:
    run = slot.run
    if run is None:
        return SlotView(slot.index, "idle", None, 0, 0, 0, len(slot.tokens), 0.0)
    return SlotView(
        slot=slot.index,
        phase="reading" if run.last_token is None else "decoding",
        request_id=run.request_id,
        prompt_tokens=len(run.request.prompt),
        read_tokens=run.read_rows,
        reply_tokens=len(run.reply),
        kept_tokens=0,
        longest_gap_ms=1000 * run.longest_gap,
    )
