"""An engine without a model, which takes time on a clock of its own and holds the scheduler to its contract.

Slots hold token ids; every step is checked against them: what is continued is there, reads go on where they ended and
are cut on the grid, windows run for replies that are under way. What a reply says depends on its request alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from strata.engine.request import TokenRequest
from strata.engine.steps import Abandon, Open, ParkingSpace, Preparation, Read, SlotResult, Step, Window
from strata.errors import RequestError
from strata.sampling.draw import Draw
from strata.sampling.options import SamplingOptions
from strata.types import FinishReason, ReadAhead


def reply_token(request: TokenRequest, index: int) -> int:
    """The token at a place of a reply."""
    return (sum(request.prompt[-5:]) * 31 + len(request.prompt) * 7 + request.choice * 13 + index * 101) % 1000


LAYERS = 16  # a step of a read is one of them


@dataclass
class Costs:
    """Seconds of a model's steps; of a read those of all layers together."""

    row: float = 0.0005
    row_per_position: float = 0.0  # attention: grows with the rows before it
    read: float = 0.002
    window: float = 0.010
    window_row: float = 0.002


@dataclass
class SimulatedSlot:
    """What a slot's state holds."""

    tokens: list[int] = field(default_factory=list)
    points: list[int] = field(default_factory=list)
    passing: int | None = None  # of them, the one that goes when the next one comes
    reply_start: int | None = None
    request: TokenRequest | None = None
    length: int = 0  # of the reply
    piece: Read | None = None  # some of its layers are done
    layers: int = 0  # of the piece


class SimulatedEngine:
    """See `StepEngine`. `now` is its clock."""

    parking = ParkingSpace()
    reads_as_windows = False

    layers = LAYERS

    def __init__(self, costs: Costs | None = None, groups: int = 1, run_chunks: int | None = None) -> None:
        """run_chunks: rows of a chunk, of an engine that reads many of them in one call."""
        self.costs = costs or Costs()
        self.groups, self.run_chunks = groups, run_chunks
        self.now = 0.0
        self.steps: list[Step] = []
        self.slots: dict[int, SimulatedSlot] = {}
        self.preparations: dict[int, Preparation] = {}  # by the first token of a prompt
        self.fails_at: int | None = None  # a token in a prompt that cannot be read
        self.parked: dict[int, int] = {}  # rows of what lies in a place, whose tokens `slots` has
        self.refuses_parking: Callable[[], bool] = lambda: False

    @property
    def reads_runs(self) -> bool:
        return self.run_chunks is not None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def check(self, request: TokenRequest) -> None:
        if not request.prompt:
            raise RequestError("the prompt is empty")

    def prepare(self, request: TokenRequest) -> Preparation | None:
        return self.preparations.get(request.prompt[0])

    def memory(self) -> Mapping[str, int]:
        return {"states": sum(len(slot.tokens) for slot in self.slots.values())}

    experts_are_rows = True
    waiting_for = None
    read_ahead = ReadAhead()
    arrivals = 0

    def checkpoints(self) -> Mapping[str, int]:
        return {"kept": sum(len(slot.points) for slot in self.slots.values()), "dropped": 0, "hits": 0, "rows": 0}

    def pages(self) -> Mapping[str, int]:
        return {}

    def experts(self) -> Mapping[str, int]:
        return {"cpu": 0}

    def experts_read(self) -> Mapping[str, int]:
        return {}

    def run(self, step: Step) -> tuple[SlotResult, ...]:
        self.steps.append(step)
        if isinstance(step, Window):
            self._check_groups(step)
            self.now += self.costs.window + self.costs.window_row * len(step.most_drafts)
            return tuple(self._decode(number) for number in step.most_drafts)
        if isinstance(step, Abandon):
            self._abandon(self.slots[step.slot])
            return ()
        return (self._open(step) if isinstance(step, Open) else self._read(step),)

    def _check_groups(self, step: Window) -> None:
        assert step.groups.keys() == (step.most_drafts.keys() if self.groups > 1 else set())
        rows = [0] * self.groups
        for slot, most in step.most_drafts.items():
            rows[step.groups.get(slot, 0)] += 1 + most
        assert sum(rows) > 0 and max(rows) <= 32

    def _park(self, step: Open) -> bool:
        """Drop what gives way, and park what the slot holds unless this engine has no room just now."""
        for place in step.dropped:
            if place != step.source:
                del self.slots[place], self.parked[place]
        if step.park is None:
            return False
        slot, rows, place = self.slots[step.slot], len(step.park.tokens), step.park.place
        assert slot.piece is None and list(step.park.tokens) == slot.tokens[:rows], "what is parked is another text"
        assert rows in slot.points or (slot.reply_start is not None and slot.reply_start < rows <= len(slot.tokens))
        assert place not in self.slots, "something lies there"
        if self.refuses_parking():
            return False
        self.parked[place] = rows
        assert sum(map(self.parking.size, self.parked.values())) <= self.parking.limit
        points = [point for point in slot.points if point <= rows]
        self.slots[place] = replace(slot, tokens=slot.tokens[:rows], points=points, passing=None, reply_start=None)
        return True

    def _open(self, step: Open) -> SlotResult:
        is_parked = self._park(step)
        if step.park is not None and step.source == step.park.place and not is_parked:
            step = replace(step, source=step.slot)
        return replace(self._opened(step), is_parked=is_parked)

    def _opened(self, step: Open) -> SlotResult:
        prompt = list(step.request.prompt)
        assert step.position < len(prompt)
        points: list[int] = []
        if step.source is not None:
            source = self.slots[step.source]
            assert source.tokens[: step.position] == prompt[: step.position], "what is continued is another text"
            in_reply = source.reply_start is not None and source.reply_start < step.position <= len(source.tokens)
            in_reply = in_reply or step.position == self.parked.get(step.source)
            assert step.position in source.points or in_reply, "there is no way back to that place"
            points = [point for point in source.points if point <= step.position]
            if step.position not in points:
                points.append(step.position)
        else:
            assert step.position == 0
        if step.source in step.dropped:
            assert step.source is not None
            del self.slots[step.source], self.parked[step.source]
        held = self.slots.get(step.slot)
        assert held is None or held.piece is None, "a read is given up before its slot is another's"
        self.slots[step.slot] = SimulatedSlot(prompt[: step.position], points, request=step.request)
        return SlotResult(step.slot, points=tuple(points))

    def _read(self, step: Read) -> SlotResult:
        slot = self.slots[step.slot]
        assert slot.request is not None and slot.length == 0
        prompt, begin = slot.request.prompt, len(slot.tokens)
        assert begin < step.stop <= len(prompt)
        assert step.stop % 64 == 0 or step.stop == len(prompt), "a cut off the grid changes bits"
        assert slot.piece in (None, step), "what was begun is gone on with"
        stop = step.stop if self.run_chunks is None else min(step.stop, (begin + self.run_chunks) // 64 * 64)
        whole = self.costs.read + (stop - begin) * (self.costs.row + self.costs.row_per_position * stop)
        self.now += whole / self.layers
        slot.piece, slot.layers = step, slot.layers + 1
        if slot.layers < self.layers:
            return SlotResult(step.slot, is_under_way=True, points=tuple(slot.points))
        slot.layers = 0
        if self.fails_at in prompt[begin:stop]:
            del self.slots[step.slot]
            return SlotResult(step.slot, error="the numbers are not finite")
        slot.tokens += prompt[begin:stop]
        points = [point for point in step.points if point > begin]
        assert len(points) == len(step.points) or self.reads_runs
        assert all(point <= step.stop and point % 64 == 0 for point in points)
        wanted = [*(point for point in points if point <= stop), *([stop] if stop < len(prompt) else [])]
        if wanted and slot.passing is not None:
            slot.points.remove(slot.passing)
        slot.points += sorted(set(wanted))
        slot.passing = None if stop in step.points or not wanted else stop
        if stop < step.stop:
            return SlotResult(step.slot, is_under_way=True, read_rows=stop, points=tuple(slot.points))
        slot.piece = None
        if stop < len(prompt):
            return SlotResult(step.slot, points=tuple(slot.points))
        slot.reply_start = step.stop
        return self._drawn(step.slot, slot)

    def _abandon(self, slot: SimulatedSlot) -> None:
        assert slot.piece is not None, "only what is under way is given up"
        slot.piece, slot.layers = None, 0
        del slot.tokens[slot.points[-1] if slot.points else 0 :]

    def _decode(self, number: int) -> SlotResult:
        slot = self.slots[number]
        assert slot.request is not None and slot.length > 0
        slot.tokens.append(reply_token(slot.request, slot.length - 1))
        return self._drawn(number, slot)

    def _drawn(self, number: int, slot: SimulatedSlot) -> SlotResult:
        assert slot.request is not None
        draw = Draw(reply_token(slot.request, slot.length))
        slot.length += 1
        reason = FinishReason.LENGTH if slot.length == slot.request.options.max_tokens else None
        return SlotResult(number, (draw,), reason, points=tuple(slot.points))


def request(prompt: tuple[int, ...], max_tokens: int = 10, choice: int = 0) -> TokenRequest:
    """A greedy one."""
    return TokenRequest(prompt, SamplingOptions(max_tokens=max_tokens), choice=choice)
