"""Who gets a slot, where it goes on from, and what becomes of what the slot held. Knows books; no clock and no model.

waiting → opened in a slot, perhaps while another prompt gives way → released: the slot keeps the conversation
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from strata.engine.steps import Open, SlotResult
from strata.scheduler.parked import ParkedBooks
from strata.scheduler.read_modes import ReadRule, gives_way
from strata.scheduler.reads import PromptRead
from strata.scheduler.request import Run
from strata.scheduler.slots import SlotBook, choose_start
from strata.scheduler.turns import KeptTurns

MOST_COMPARED = 4  # waiting prompts with what slots hold, to see whether they may pass


class Admission:
    """The requests that wait, and the books of all slots and parked conversations."""

    def __init__(self, slots: Sequence[SlotBook], parked: ParkedBooks, *, keep_turns: bool) -> None:
        self.slots = slots
        self.parked = parked
        self._keep_turns = keep_turns
        self._waiting: deque[Run] = deque()
        self._unread: dict[int, int] = {}  # rows that a waiting request would read, by its number, as the books are now
        self._turns = KeptTurns()
        self._uses = 0
        self._floor = 0.0  # rank of the last conversation that gave way

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, run: Run) -> None:
        """A request waits."""
        self._waiting.append(run)

    def withdraw(self, request_id: int) -> Run | None:
        """Take a request back that waits; None if it does not."""
        run = next((run for run in self._waiting if run.request_id == request_id), None)
        if run is not None:
            self._waiting.remove(run)
        return run

    def take_next(self, reading: PromptRead | None, rule: ReadRule) -> Run | None:
        """The request that gets a slot now: whoever came first, or, while a prompt is read, who may pass it."""
        if not self._waiting or not any(slot.is_idle for slot in self.slots):
            return None
        ready = (run for run in self._waiting if run.is_ready)
        run = next(ready, None) if reading is None else self._passing(ready, reading, rule)
        if run is not None:
            self._waiting.remove(run)
        return run

    def open(self, run: Run, prepared: Any, now: float, *, reads_as_windows: bool) -> Open:
        """Give it a slot; one is idle. reads_as_windows: whether a read row has the bits of a decoded one."""
        start = choose_start(run.request, self.slots, self.parked.books, keep_turns=self._keep_turns)
        way = self.parked.make_way(start, self.slots[start.slot])
        start, source = way.start, self._book(way.start.source)
        self._note_lost_turn(run, start.position, reads_as_windows=reads_as_windows)
        run.opened = now
        run.read_rows = run.cached = start.position
        slot = self.slots[start.slot]
        if start.source != start.slot:
            self._floor = max(self._floor, slot.rank)
        slot.begin(run, start, source)
        self.parked.note_hit(start)
        self._unread.clear()
        return Open(start.slot, run.request, start.source, start.position, prepared, way.park, way.dropped)

    def note_opened(self, step: Open, opened: SlotResult, run: Run) -> None:
        """What became of the conversations that an open moved."""
        if step.park is not None and not opened.is_parked:
            self.parked.lose(step.park.place)
        if opened.begins_anew:
            run.read_rows = run.cached = 0
            self.slots[step.slot].read_only = len(run.request.prompt)
        self._unread.clear()

    def note_points(self, number: int, points: tuple[int, ...]) -> None:
        """Where the conversation in a slot or place may be gone on with now."""
        book = self._book(number)
        assert book is not None, "the engine tells of what it holds"
        book.points = points
        self._unread.clear()

    def release(self, slot: SlotBook, kept_reply: int | None = None) -> None:
        """Its request has ended; of the reply the first `kept_reply` tokens belong to the conversation (None: all)."""
        self._uses += 1
        slot.end(self._uses, kept_reply, self._floor)
        self._remember(slot)
        self._unread.clear()

    def lose(self, slot: SlotBook) -> None:
        """Its state is gone."""
        self._uses += 1
        slot.clear(self._uses)
        self._unread.clear()

    def cut(self, request_id: int, keep_tokens: int) -> None:
        """Cut the conversation of a request that has ended behind so many tokens of its reply."""
        self._unread.clear()
        for slot in self.slots:
            if slot.is_idle and slot.last_request == request_id:
                slot.keep_reply(keep_tokens)
                self._remember(slot)
                return
        if lost := self.parked.cut(request_id, keep_tokens):
            self._turns.remember(lost)

    def _passing(self, ready: Iterable[Run], reading: PromptRead, rule: ReadRule) -> Run | None:
        """The first of those that are read in under half of the rows that are left.

        What slots have of their prompts counts for the first few alone: comparing long prompts takes a while.
        """

        def passes(rows: int) -> bool:
            return gives_way(rule, reading.left, rows, reading.times_given_way, reading.is_in_run)

        if not passes(1):
            return None
        for place, run in enumerate(ready):
            if passes(len(run.request.prompt)) or (place < MOST_COMPARED and passes(self._unread_rows(run))):
                return run
        return None

    def _unread_rows(self, run: Run) -> int:
        """Of a request that waits; found once for every change of the books."""
        if run.request_id not in self._unread:
            start = choose_start(run.request, self.slots, self.parked.books, keep_turns=self._keep_turns)
            self._unread[run.request_id] = len(run.request.prompt) - start.position
        return self._unread[run.request_id]

    def _book(self, number: int | None) -> SlotBook | None:
        """Of a slot or of a place."""
        if number is None:
            return None
        return self.slots[number] if number < len(self.slots) else self.parked.get(number)

    def _note_lost_turn(self, run: Run, position: int, *, reads_as_windows: bool) -> None:
        if not self._keep_turns or run.request.prompt_logprobs is not None:
            return
        kept = self._turns.longest_in(run.request.prompt)
        if kept > position:
            effect = "gives the same bits as" if reads_as_windows else "rounds otherwise than"
            run.notices += (
                f"the kept state of this conversation was dropped: tokens {position} to {kept} were read again, "
                f"which {effect} going on from it",
            )

    def _remember(self, slot: SlotBook) -> None:
        if slot.turn_end is not None:
            self._turns.remember(slot.tokens[: slot.turn_end])
