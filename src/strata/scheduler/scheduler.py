"""The loop that serves requests: take in, decide, run one step, commit, hand out.

Knows requests by number, slots by index, an engine that runs steps, and a clock; no model, no text, no thread. A turn
is one step, so whatever was asked in between - a new request, a cancel - takes effect before the next one.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from strata.engine.messages import Drawn, Ended, FromEngine, PromptRead, ReadProgress, SlotView, Statistics
from strata.engine.request import TokenRequest
from strata.engine.steps import Abandon, Open, Preparation, Read, SlotResult, Step, Window
from strata.errors import RequestError
from strata.scheduler.counters import Counters
from strata.scheduler.due import Limits, Pace, Reading, Stream, View, next_step
from strata.scheduler.request import Run
from strata.scheduler.slots import SlotBook, Start, choose_start
from strata.scheduler.turns import KeptTurns
from strata.types import FinishReason, ReadAhead

PREPARING_SECONDS = 0.002  # between two looks at requests that are still being prepared, if there is nothing else


class StepEngine(Protocol):
    """What runs the steps; `engine.engine.TokenEngine` is one."""

    @property
    def reads_as_windows(self) -> bool:
        """Whether a read row has the bits of a decoded one."""
        ...

    @property
    def experts_are_rows(self) -> bool:
        """What `experts` counts: see `Statistics`."""
        ...

    @property
    def read_ahead(self) -> ReadAhead:
        """Of the prompt that is being read: what its device has to do."""
        ...

    @property
    def waiting_for(self) -> str | None:
        """What the step under way waits for beside its device, in a sentence. From any thread."""
        ...

    @property
    def arrivals(self) -> int:
        """Experts and rows of tables that came from files so far. From any thread."""
        ...

    def check(self, request: TokenRequest) -> None:
        """Raises RequestError for a request that cannot be run."""
        ...

    def prepare(self, request: TokenRequest) -> Preparation | None:
        """Start what a checked request needs before it gets a slot. Raises RequestError."""
        ...

    def run(self, step: Step) -> tuple[SlotResult, ...]:
        """Do one step. What an open or a read gives its own slot comes last."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Bytes by use."""
        ...

    def checkpoints(self) -> Mapping[str, int]:
        """What is kept of them and what became of them so far: see `Statistics`."""
        ...

    def pages(self) -> Mapping[str, int]:
        """Blocks of keys and values in main memory: see `Statistics`."""
        ...

    def experts(self) -> Mapping[str, int]:
        """Routed experts computed so far, by where: see `Statistics`."""
        ...

    def experts_read(self) -> Mapping[str, int]:
        """Of those that stay in files: see `Statistics`."""
        ...


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
        self._limits = limits
        self._clock, self._sleep = clock, sleep
        self._started = clock()
        self._slots = [SlotBook(index) for index in range(limits.slots)]
        self._waiting: deque[Run] = deque()
        self._running: dict[int, SlotBook] = {}  # by the request's number
        self._reading: SlotBook | None = None
        self._piece: Read | None = None  # of its prompt, some steps of which are done
        self._abandoned: deque[int] = deque()  # slots with such a piece whose request has ended
        self._pace = Pace()
        self._ahead = ReadAhead()  # of the prompt's read, when the last step was decided
        self._turns = KeptTurns()
        self._counters = Counters()
        self._uses = 0
        self._floor = 0.0  # rank of the last conversation that gave way
        self._out: list[FromEngine] = []

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self._out or self._waiting or self._running or self._abandoned)

    def submit(self, request_id: int, request: TokenRequest) -> None:
        """Take a request in. One that cannot be served ends at once, as its caller's mistake."""
        run = Run(request_id, request, self._clock())
        try:
            self._engine.check(request)
            run.preparation = self._engine.prepare(request)
        except RequestError as mistake:
            self._end(run, FinishReason.ERROR, str(mistake), is_callers_mistake=True)
            return
        self._waiting.append(run)

    def cancel(self, request_id: int, keep_tokens: int | None = None) -> None:
        """End a request in whatever phase it is.

        keep_tokens: tokens of the reply that were handed out; the slot's conversation ends with them. Also taken when
        the reply has just ended by itself; numbers that are unknown by now are ignored.
        """
        for run in self._waiting:
            if run.request_id == request_id:
                self._waiting.remove(run)
                self._end(run, FinishReason.CANCELLED)
                return
        slot = self._running.get(request_id)
        if slot is not None:
            assert slot.run is not None
            self._end(slot.run, FinishReason.CANCELLED, kept_reply=keep_tokens)
        elif keep_tokens is not None:
            self._cut_ended(request_id, keep_tokens)

    def turn(self) -> list[FromEngine]:
        """Run the step that is due, if there is one; returns what there is to tell, of this step and of before."""
        step = self._decide()
        if step is not None:
            began = self._clock()
            results = self._engine.run(step)
            now = self._clock()
            self._learn(step, results, now - began)
            for result in results:
                self._commit(result, now)
        elif not self._out and self._waiting:
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
            waiting=len(self._waiting),
            slots=tuple(map(_view, self._slots)),
            memory=self._engine.memory(),
            checkpoints=self._engine.checkpoints(),
            pages=self._engine.pages(),
            experts=self._engine.experts(),
            experts_are_rows=self._engine.experts_are_rows,
            experts_read=self._engine.experts_read(),
        )

    def _decide(self) -> Step | None:
        if self._abandoned:
            return Abandon(self._abandoned.popleft())
        opening = self._admit() if self._reading is None else None
        if opening is not None:
            return opening
        streams = [
            Stream(slot.index, slot.run.last_token)
            for slot in self._running.values()
            if slot.run is not None and slot.run.last_token is not None
        ]
        reading = None
        if self._reading is not None and self._reading.run is not None:
            run = self._reading.run
            reading = Reading(self._reading.index, run.read_rows, len(run.request.prompt), self._piece, run.points)
        self._ahead = self._engine.read_ahead if reading is not None and streams else ReadAhead()
        return next_step(View(self._clock(), reading, streams, self._pace, self._ahead), self._limits)

    def _admit(self) -> Open | None:
        """Give a slot to the request that waits longest, if there is one of each."""
        run = next((run for run in self._waiting if run.is_ready), None)
        if run is None or not any(slot.is_idle for slot in self._slots):
            return None
        self._waiting.remove(run)
        try:
            prepared = None if run.preparation is None else run.preparation.result()
        except RequestError as mistake:
            self._end(run, FinishReason.ERROR, str(mistake), is_callers_mistake=True)
            return self._admit()
        start = choose_start(run.request, self._slots, keep_turns=self._limits.keep_turns)
        source = None if start.source is None else self._slots[start.source]
        self._note_lost_turn(run, start)
        run.opened = self._clock()
        run.read_rows = run.cached = start.position
        self._reading = self._running[run.request_id] = self._slots[start.slot]
        if start.source != start.slot:
            self._floor = max(self._floor, self._reading.rank)
        self._reading.begin(run, start, source)
        return Open(start.slot, run.request, start.source, start.position, prepared)

    def _note_lost_turn(self, run: Run, start: Start) -> None:
        if not self._limits.keep_turns or run.request.prompt_logprobs is not None:
            return
        kept = self._turns.longest_in(run.request.prompt)
        if kept > start.position:
            effect = "gives the same bits as" if self._engine.reads_as_windows else "rounds otherwise than"
            run.notices += (
                f"the kept state of this conversation was dropped: tokens {start.position} to {kept} were read again, "
                f"which {effect} going on from it",
            )

    def _learn(self, step: Step, results: Sequence[SlotResult], seconds: float) -> None:
        """What a step says of the pace and of how far a prompt is. The last result is its own unless it is a window."""
        self._counters.busy_seconds += seconds
        if isinstance(step, Window):
            self._counters.windows += 1
            self._pace.note_window(seconds, self._ahead.queued, self._limits.decode_share or 0.0)
            return
        if isinstance(step, Abandon):
            return
        *late, own = results
        self._counters.windows += bool(late)  # one was under way when the step came
        run = self._slots[step.slot].run
        assert run is not None, "a slot that is opened or reads has a request"
        if isinstance(step, Read):
            self._pace.note_read(seconds, self._limits.decode_share or 0.0)
            self._piece = step if own.is_under_way else None
        if own.is_under_way:
            return
        if isinstance(step, Read):
            rows, run.read_rows = step.stop - run.read_rows, step.stop
            self._counters.prompt_tokens += rows
        elif own.error is None:
            self._counters.cached_tokens += run.cached
        if own.error is None:
            self._out.append(ReadProgress(run.request_id, run.read_rows, len(run.request.prompt), run.cached))

    def _commit(self, result: SlotResult, now: float) -> None:
        """Write into the books what a step gave for one slot, and what is to be told of it.

        A window may have been under way when its reply was cancelled: what it gave belongs to nobody.
        """
        slot = self._slots[result.slot]
        run = slot.run
        for number, points in result.others.items():
            self._slots[number].points = points
        if run is None:
            if result.error is not None:
                self._uses += 1
                slot.clear(self._uses)
            return
        run.notices += result.notices
        if result.error is not None:
            self._end(run, FinishReason.ERROR, result.error, is_callers_mistake=result.is_callers_mistake)
            return
        slot.points = result.points
        if result.prompt_logprobs is not None:
            self._out.append(PromptRead(run.request_id, result.prompt_logprobs))
        if result.draws:
            if self._reading is slot:
                self._stop_reading()
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
            if self._reading is slot:
                self._stop_reading()
            self._uses += 1
            if error is not None:
                slot.clear(self._uses)
            else:
                slot.end(self._uses, kept_reply, self._floor)
                self._remember(slot)
        tokens = len(run.reply) if kept_reply is None else min(kept_reply, len(run.reply))
        usage = run.usage(self._clock(), tokens)
        self._out.append(Ended(run.request_id, reason, usage, error, is_callers_mistake, run.notices))

    def _stop_reading(self) -> None:
        if self._piece is not None and self._reading is not None:
            self._abandoned.append(self._reading.index)
        self._reading = self._piece = None
        self._pace.owed_seconds = 0.0

    def _cut_ended(self, request_id: int, keep_tokens: int) -> None:
        for slot in self._slots:
            if slot.is_idle and slot.last_request == request_id:
                slot.keep_reply(keep_tokens)
                self._remember(slot)

    def _remember(self, slot: SlotBook) -> None:
        if slot.turn_end is not None:
            self._turns.remember(slot.tokens[: slot.turn_end])


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
