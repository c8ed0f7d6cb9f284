"""An engine without a model, which takes time on a clock of its own and holds the scheduler to its contract.

Slots hold token ids; every step is checked against them: what is continued is there, reads go on where they ended and
are cut on the grid, windows run for replies that are under way. What a reply says depends on its request alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from strata.engine.request import TokenRequest
from strata.engine.steps import Abandon, Open, Preparation, Read, SlotResult, Step, Window
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

    reads_as_windows = False

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.now = 0.0
        self.steps: list[Step] = []
        self.slots: dict[int, SimulatedSlot] = {}
        self.preparations: dict[int, Preparation] = {}  # by the first token of a prompt
        self.fails_at: int | None = None  # a token in a prompt that cannot be read

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
            assert 0 < sum(1 + most for most in step.most_drafts.values()) <= 32
            self.now += self.costs.window + self.costs.window_row * len(step.most_drafts)
            return tuple(self._decode(number) for number in step.most_drafts)
        if isinstance(step, Abandon):
            self._abandon(self.slots[step.slot])
            return ()
        return (self._open(step) if isinstance(step, Open) else self._read(step),)

    def _open(self, step: Open) -> SlotResult:
        prompt = list(step.request.prompt)
        assert step.position < len(prompt)
        points: list[int] = []
        if step.source is not None:
            source = self.slots[step.source]
            assert source.tokens[: step.position] == prompt[: step.position], "what is continued is another text"
            in_reply = source.reply_start is not None and source.reply_start < step.position <= len(source.tokens)
            assert step.position in source.points or in_reply, "there is no way back to that place"
            points = [point for point in source.points if point <= step.position]
            if step.position not in points:
                points.append(step.position)
        else:
            assert step.position == 0
        assert all(slot.piece is None for slot in self.slots.values()), "a read is given up or goes on"
        self.slots[step.slot] = SimulatedSlot(prompt[: step.position], points, request=step.request)
        return SlotResult(step.slot, points=tuple(points))

    def _read(self, step: Read) -> SlotResult:
        slot = self.slots[step.slot]
        assert slot.request is not None and slot.length == 0
        prompt, begin = slot.request.prompt, len(slot.tokens)
        assert begin < step.stop <= len(prompt)
        assert step.stop % 64 == 0 or step.stop == len(prompt), "a cut off the grid changes bits"
        assert slot.piece in (None, step), "what was begun is gone on with"
        rows = step.stop - begin
        whole = self.costs.read + rows * (self.costs.row + self.costs.row_per_position * step.stop)
        self.now += whole / LAYERS
        slot.piece, slot.layers = step, slot.layers + 1
        if slot.layers < LAYERS:
            return SlotResult(step.slot, is_under_way=True, points=tuple(slot.points))
        slot.piece, slot.layers = None, 0
        if self.fails_at in prompt[begin : step.stop]:
            del self.slots[step.slot]
            return SlotResult(step.slot, error="the numbers are not finite")
        slot.tokens += prompt[begin : step.stop]
        assert all(begin < point <= step.stop and point % 64 == 0 for point in step.points)
        wanted = [*step.points, *([step.stop] if step.stop < len(prompt) else [])]
        if wanted and slot.passing is not None:
            slot.points.remove(slot.passing)
        slot.points += sorted(set(wanted))
        slot.passing = None if step.stop in step.points or not wanted else step.stop
        if step.stop < len(prompt):
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
