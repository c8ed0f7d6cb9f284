"""A device without kernels whose windows run late: what is launched is done when somebody waits for it, in order.

Tokens depend on everything that is part of a slot's state, so a state that is wrong by one row shows in the reply. The
same model without a device, `PlainModel`, is what it is held against.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from strata.engine.reply import Reply
from strata.engine.window import WindowPart
from strata.engine.windows_ahead import Landed
from strata.errors import EngineError
from strata.models.base import LogitRows, Output, Reading, Segment, WindowResult
from strata.models.reading import OutputSteps, Steps
from strata.types import ReadAhead

VOCABULARY = 61


def next_token(tokens: Sequence[int]) -> int:
    """What the model says behind these tokens."""
    mixed = 7
    for token in tokens:
        mixed = (mixed * 31 + token + 1) % 100_003
    return mixed % VOCABULARY


def logits_behind(tokens: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
    """Logits of `rows` behind the state `tokens`."""
    logits = torch.zeros(len(rows), VOCABULARY)
    for count in range(1, len(rows) + 1):
        logits[count - 1, next_token([*tokens, *rows[:count]])] = 4.0
    return logits


def fresh_reply(prompt: Sequence[int], count: int) -> list[int]:
    """The greedy reply to a prompt."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class Place:
    """What the device knows of one of its slots."""

    tokens: list[int] = field(default_factory=list)
    marks: dict[int, list[int]] = field(default_factory=dict)  # by the mark's number; two at most
    last_token: int = -1
    left: int = 0  # tokens that the reply may still have
    stop: frozenset[int] = frozenset()
    breaks_at: int | None = None  # position at which its numbers stop being finite


@dataclass
class Mark:
    number: int
    position: int | None  # None until the window lands that it was taken behind


class LateState:
    """A slot's state as the host holds it: `position` is what the host knows, not where the device is."""

    def __init__(self, device: "LateDevice", place: Place) -> None:
        self.device, self.place = device, place
        self.position = 0
        self.in_flight = 0
        self.open_mark: Mark | None = None
        self.is_released = False

    def land(self, rows: int) -> None:
        """A window has landed."""
        self.in_flight -= 1
        self.position += rows
        if self.open_mark is not None:
            self.open_mark.position, self.open_mark = self.position, None

    def bytes_used(self) -> int:
        return 8 * len(self.place.tokens)

    def clone(self) -> "LateState":
        raise AssertionError("the engine forks, it does not clone")

    def take_checkpoint(self, *, is_mark: bool) -> Any:
        if not is_mark:
            self.device.catch_up()
            assert self.position == len(self.place.tokens), "a point is taken where the device stands"
            return tuple(self.place.tokens)
        mark = Mark(self.device.next_mark(), None if self.in_flight else self.position)
        self.open_mark = mark if self.in_flight else None
        self.device.queue(lambda: self._copy(mark.number))
        return mark

    def _copy(self, number: int) -> None:
        self.place.marks[number] = list(self.place.tokens)
        for old in sorted(self.place.marks)[:-2]:
            del self.place.marks[old]

    def go_back(self, saved: Any) -> None:
        assert not self.is_released
        self.device.catch_up()
        self.place.tokens = self._saved_tokens(saved)
        self.position = len(self.place.tokens)

    def fork(self, saved: Any) -> "LateState":
        self.device.catch_up()
        other = self.device.new_state()
        other.place.tokens = self._saved_tokens(saved)
        other.position = len(other.place.tokens)
        return other

    def _saved_tokens(self, saved: Any) -> list[int]:
        if not isinstance(saved, Mark):
            return list(saved)
        tokens = self.place.marks[saved.number]
        assert saved.position == len(tokens), "the host knows where the mark stands"
        return list(tokens)


class LateDevice:
    """See `LanguageModel` and `WindowDevice`. `host_chooses` names replies, by seed, that the device leaves alone."""

    experts_per_row = 1
    experts_place = "vram"
    experts_counted = None
    experts_read: ClassVar[dict[str, int]] = {}
    waiting_for = None
    read_ahead = ReadAhead()
    arrivals = 0
    reads_as_windows = True
    keeps_marks = False
    reads_runs = False
    chunk_rows = None
    most_window_rows = None
    pages_counted: ClassVar[dict[str, int]] = {}
    vocabulary_size = VOCABULARY
    draft_head = None
    config = None

    def __init__(self, slots: int, max_position: int = 512, host_chooses: frozenset[int] = frozenset()) -> None:
        self.max_position = max_position
        self.host_chooses = host_chooses
        self.free = [Place() for _ in range(slots)]
        self.launches: list[tuple[int, ...]] = []
        self.landed = 0
        self.windows = 0  # of the host's
        self._queue: list[Any] = []
        self._marks = 0
        self.most_in_flight = 0

    def queue(self, work: Any) -> None:
        """Work in the order of launches, done when somebody waits."""
        self._queue.append(work)

    def catch_up(self) -> None:
        """Do all that is queued."""
        while self._queue:
            self._queue.pop(0)()

    def next_mark(self) -> int:
        self._marks += 1
        return self._marks

    def new_state(self) -> LateState:
        assert self.free, "there is a place for every slot"
        self.catch_up()
        state = LateState(self, self.free.pop())
        state.place.tokens, state.place.marks, state.place.breaks_at = [], {}, None
        return state

    def release(self, state: LateState) -> None:
        assert not state.is_released, "a place is given back once"
        self.catch_up()
        state.is_released = True
        self.free.append(state.place)

    def begin_read(
        self, segment: Segment, logit_rows: LogitRows = LogitRows.LAST, marks: Sequence[int] = ()
    ) -> Reading:
        return Steps(self._read_steps(segment, logit_rows))

    def _read_steps(self, segment: Segment, logit_rows: LogitRows) -> OutputSteps:
        yield  # between its two layers
        return self.read([segment], logit_rows)

    def read(self, segments: Sequence[Segment], logit_rows: LogitRows = LogitRows.LAST) -> Output:
        self.catch_up()
        (segment,) = segments
        rows = segment.token_ids.tolist()
        logits = logits_behind(self._settled(segment), rows)
        segment.state.place.tokens += rows
        segment.state.position += len(rows)
        first = {LogitRows.ALL: 0, LogitRows.LAST: len(rows) - 1, LogitRows.NONE: len(rows)}[logit_rows]
        return Output(logits[first:], logits.new_empty(len(rows), 0))

    def window(self, segments: Sequence[Segment]) -> WindowResult:
        self.catch_up()
        self.windows += 1
        for segment in segments:
            if segment.state.place.breaks_at == segment.state.position:
                raise EngineError("the logits of the window are not finite")
        made = [logits_behind(self._settled(segment), segment.token_ids.tolist()) for segment in segments]
        logits = torch.cat(made)
        return WindowResult(segments, Output(logits, logits.new_empty(len(logits), 0)), None)

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        for segment, accepted in zip(window.segments, accepted_rows, strict=True):
            segment.state.place.tokens += segment.token_ids[:accepted].tolist()
            segment.state.position += accepted

    def road(self) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        pass

    def chooses(self, reply: Reply) -> bool:
        return reply.request.options.seed not in self.host_chooses

    def begin(self, parts: Mapping[int, WindowPart]) -> None:
        assert len(self.launches) == self.landed, "nothing is in flight"
        for part in parts.values():
            place, reply = part.slot.state.place, part.reply
            assert part.slot.position == len(place.tokens)
            place.last_token, place.left = reply.last_token, reply.budget - reply.length
            place.stop = reply.request.stop_token_ids

    def launch(self, parts: Mapping[int, WindowPart]) -> Any:
        results: dict[int, Landed] = {}
        states = {number: part.slot.state for number, part in parts.items()}
        self.queue(lambda: results.update({number: self._step(state.place) for number, state in states.items()}))
        for state in states.values():
            state.in_flight += 1
        self.launches.append(tuple(parts))
        self.most_in_flight = max(self.most_in_flight, len(self.launches) - self.landed)
        return results, states, len(self.launches)

    def land(self, launched: Any) -> Mapping[int, Landed]:
        results, states, order = launched
        assert order == self.landed + 1, "windows land in their order"
        self.landed = order
        while not results:
            self._queue.pop(0)()
        for number, landed in results.items():
            states[number].land(len(landed.tokens))
        return results

    def forget(self) -> None:
        self.catch_up()
        self.landed = len(self.launches)

    def _step(self, place: Place) -> Landed:
        """One row of one slot, its token chosen and committed here."""
        if place.left == 0:
            return Landed((), has_ended=True)
        if place.breaks_at == len(place.tokens):
            place.left = 0
            return Landed((), True, EngineError("the logits of the window are not finite"))
        place.tokens.append(place.last_token)
        place.last_token = next_token(place.tokens)
        place.left = 0 if place.last_token in place.stop else place.left - 1
        return Landed((place.last_token,), has_ended=place.left == 0)

    @staticmethod
    def _settled(segment: Segment) -> list[int]:
        tokens: list[int] = segment.state.place.tokens
        assert segment.state.position == len(tokens), "the host knows where the device is"
        return tokens
