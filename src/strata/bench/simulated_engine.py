"""An engine without a model, whose steps take a machine's time on a clock of its own; the scheduler over it is real.

Holds the scheduler to its contract as it goes: what is continued is there, reads go on where they ended, windows run
for replies that are under way. Raises EngineError where that is broken. A reply's tokens depend on its request alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from strata.bench.simulated_machine import Machine
from strata.engine.request import TokenRequest
from strata.engine.steps import Abandon, Open, ParkingSpace, Read, SlotResult, Step, Window
from strata.errors import EngineError, RequestError
from strata.sampling.draw import Draw
from strata.types import FinishReason, ReadAhead


@dataclass
class _Preparation:
    """See `Preparation`: what is done with a prompt before the engine hears of it takes its time."""

    engine: "SimulatedEngine"
    ready: float

    @property
    def is_done(self) -> bool:
        return self.engine.now >= self.ready

    def result(self) -> None:
        return None


@dataclass
class _Piece:
    """A read under way: its beats, and where it stands in them."""

    step: Read
    chunks: list[tuple[int, int]]
    beats: tuple[int, ...]
    beat: int = 0
    layer: int = 0  # of the beat
    arrival: float = 0.0  # when the experts of the next step are there
    is_begun: bool = False


@dataclass
class _Slot:
    request: TokenRequest
    tokens: list[int]  # of its state
    points: list[int]
    passing: int | None = None  # of them, the one that goes when the next one comes
    reply_start: int | None = None
    drawn: int = 0
    piece: _Piece | None = None


@dataclass
class SimulatedEngine:
    """See `StepEngine`. `now` is its clock, in seconds.

    drains: between windows and a read the stages stand empty; else chunks and windows follow each other through them.
    """

    machine: Machine
    drains: bool = True
    now: float = 0.0
    slots: dict[int, _Slot] = field(default_factory=dict)
    windows: int = 0
    _was_window: bool = False  # the last step
    _reading: int | None = None  # the slot whose prompt had the last step

    reads_as_windows = False
    experts_are_rows = True
    waiting_for = None
    arrivals = 0
    parking = ParkingSpace()

    @property
    def reads_runs(self) -> bool:
        """Several stages read many chunks in one call."""
        return self.machine.stages > 1

    @property
    def read_ahead(self) -> ReadAhead:
        """Of the read that had a step last."""
        piece = None if self._reading is None else self.slots[self._reading].piece
        if piece is None:
            return ReadAhead()
        return ReadAhead(next_step=self._step_seconds(piece), spare=max(0.0, piece.arrival - self.now))

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    def check(self, request: TokenRequest) -> None:
        """See `StepEngine`."""
        if not request.prompt:
            raise RequestError("the prompt is empty: give at least one token")

    def prepare(self, request: TokenRequest) -> _Preparation | None:
        """A long prompt's read begins later; see `Machine.preparation_row_seconds`."""
        seconds = self.machine.preparation_row_seconds * len(request.prompt)
        return _Preparation(self, self.now + seconds) if seconds else None

    def memory(self) -> Mapping[str, int]:
        """See `StepEngine`."""
        return {}

    checkpoints = pages = experts = experts_read = memory

    def run(self, step: Step) -> tuple[SlotResult, ...]:
        """Do one step; time passes. Raises EngineError if the scheduler asks for what cannot be."""
        if isinstance(step, Window):
            return self._window(step)
        if isinstance(step, Abandon):
            self._abandon(step)
            return ()
        return (self._open(step) if isinstance(step, Open) else self._read(step),)

    def _window(self, step: Window) -> tuple[SlotResult, ...]:
        streams = [0] * self.machine.groups
        for number in step.most_drafts:
            streams[step.groups.get(number, 0)] += 1
        self.now += self.machine.windows_seconds(streams, is_filling=self.drains and not self._was_window)
        self._was_window = True
        self.windows += 1
        return tuple(self._decode(number) for number in step.most_drafts)

    def _decode(self, number: int) -> SlotResult:
        slot = self.slots[number]
        _require(slot.drawn > 0, "a window runs for replies that are under way")
        slot.tokens.append(reply_token(slot.request, slot.drawn - 1))
        return self._draw(number, slot)

    def _draw(self, number: int, slot: _Slot) -> SlotResult:
        draw = Draw(reply_token(slot.request, slot.drawn))
        slot.drawn += 1
        reason = FinishReason.LENGTH if slot.drawn == slot.request.options.max_tokens else None
        return SlotResult(number, (draw,), reason, points=tuple(slot.points))

    def _open(self, step: Open) -> SlotResult:
        prompt, points = step.request.prompt, list[int]()
        held = self.slots.get(step.slot)
        _require(held is None or held.piece is None, "a read is given up before its slot is another's")
        if step.source is None:
            _require(step.position == 0, "an empty slot begins at 0")
        else:
            source = self.slots[step.source]
            _require(tuple(source.tokens[: step.position]) == prompt[: step.position], "what is continued is there")
            in_reply = source.reply_start is not None and source.reply_start < step.position <= len(source.tokens)
            _require(step.position in source.points or in_reply, "there is a way back to where it is gone on from")
            points = [*(point for point in source.points if point < step.position), step.position]
        self.slots[step.slot] = _Slot(step.request, list(prompt[: step.position]), points)
        self._reading = step.slot
        return SlotResult(step.slot, points=tuple(points))

    def _read(self, step: Read) -> SlotResult:
        """One layer step on every stage."""
        slot = self.slots[step.slot]
        begin, prompt = len(slot.tokens), slot.request.prompt
        piece = slot.piece
        if piece is None:
            _require(begin < step.stop <= len(prompt) and not slot.drawn, "a read goes on where it ended")
            _require(step.stop % 64 == 0 or step.stop == len(prompt), "a cut off the grid changes bits")
            chunks = self.machine.chunks(begin, step.stop)
            piece = slot.piece = _Piece(step, chunks, self.machine.beats(begin, step.stop))
        _require(piece.step == step, "what was begun is gone on with")
        self._reading = step.slot
        self._take_time(piece)
        self._was_window = False
        if piece.layer < self.machine.steps_of_beat:
            return SlotResult(step.slot, is_under_way=True, points=tuple(slot.points))
        return self._end_beat(step, slot, piece)

    def _take_time(self, piece: _Piece) -> None:
        """A step, behind the arrival of its experts; those of the next one come at the earliest from now on."""
        begin = max(self.now, piece.arrival)
        piece.arrival = begin + self.machine.link_step_seconds
        if not piece.is_begun:  # the first ones come now
            begin, piece.arrival = piece.arrival, piece.arrival + self.machine.link_step_seconds
        self.now = begin + self._step_seconds(piece)
        piece.is_begun = True
        piece.layer += 1

    def _step_seconds(self, piece: _Piece) -> float:
        seconds = self.machine.step_seconds(piece.beats[piece.beat], is_first_beat=piece.beat == 0)
        drains = self.drains and self._was_window and not piece.is_begun
        return seconds + (self.machine.drain_seconds if drains else 0.0)

    def _end_beat(self, step: Read, slot: _Slot, piece: _Piece) -> SlotResult:
        through = piece.beat - (self.machine.stages - 1)  # the chunk that has passed all stages
        piece.beat, piece.layer = piece.beat + 1, 0
        if through >= 0:
            self._keep(slot, step, piece.chunks[through])
        if piece.beat < len(piece.beats):
            rows = len(slot.tokens) if through >= 0 else None
            return SlotResult(step.slot, is_under_way=True, read_rows=rows, points=tuple(slot.points))
        slot.piece = None
        if step.stop < len(slot.request.prompt):
            return SlotResult(step.slot, points=tuple(slot.points))
        slot.reply_start = step.stop
        return self._draw(step.slot, slot)

    def _keep(self, slot: _Slot, step: Read, chunk: tuple[int, int]) -> None:
        """A chunk's rows are state, with the points in there and one at its end, which gives way to the next."""
        begin, end = chunk
        slot.tokens += slot.request.prompt[begin:end]
        inside = [point for point in step.points if begin < point <= end]
        last = [end] if end < len(slot.request.prompt) and end not in inside else []
        if (inside or last) and slot.passing is not None:
            slot.points.remove(slot.passing)
        slot.points += inside + last
        slot.passing = end if last else None

    def _abandon(self, step: Abandon) -> None:
        slot = self.slots[step.slot]
        _require(slot.piece is not None, "only what is under way is given up")
        slot.piece = None
        del slot.tokens[slot.points[-1] if slot.points else 0 :]


def reply_token(request: TokenRequest, index: int) -> int:
    """The token at a place of a reply."""
    return (sum(request.prompt[-5:]) * 31 + len(request.prompt) * 7 + index * 101) % 1000


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise EngineError(f"the scheduler breaks its contract: {what}")
