"""Whether a prompt's rows are numbers: looked at on the device behind each chunk, told with a later step.

Nobody waits: a chunk's answer is read when it has come to main memory by itself. The last chunk's logits tell of
themselves; these answers end a request before the chunks behind it are read. Knows slots and rows; knows no layer.
"""

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from strata.engine.stage_slots import StageSlot
from strata.experts.streams import Mark
from strata.models.row_model import not_finite

ROOMS = 64  # of answers on their way; one more waits for the first


@dataclass
class _Answer:
    stop: int  # the slot's position behind the chunk
    room: torch.Tensor  # bool [], in main memory
    there: Mark
    is_finite: bool | None = None  # None: not looked at

    def look(self) -> None:
        """Keep it; it is there, and its room may be another one's from now on."""
        if self.is_finite is None:
            self.is_finite = bool(self.room)


class PromptChecks:
    """Of the chunks that leave one device. Not thread-safe."""

    def __init__(self, device: torch.device, make_mark: Callable[[], Mark]) -> None:
        """make_mark: behind what was launched there so far."""
        self._rooms = torch.zeros(ROOMS, dtype=torch.bool, pin_memory=device.type == "cuda")
        self._asked: deque[_Answer] = deque(maxlen=ROOMS)
        self._make_mark, self._next = make_mark, 0
        self._answers: weakref.WeakKeyDictionary[StageSlot, deque[_Answer]] = weakref.WeakKeyDictionary()

    def begin(self, state: StageSlot) -> None:
        """Rows are read behind the slot's position: of chunks that did not end there nothing is told any more."""
        answers = self._answers.setdefault(state, deque())
        if answers and answers[-1].stop != state.position:
            answers.clear()

    def ask(self, state: StageSlot, stop: int, is_finite: torch.Tensor) -> None:
        """A chunk that ends at `stop` is launched; is_finite: bool [] on the device."""
        if len(self._asked) == ROOMS:
            self._asked[0].there.wait()
            self._asked[0].look()
        room, self._next = self._rooms[self._next], (self._next + 1) % ROOMS
        room.copy_(is_finite, non_blocking=True)
        answer = _Answer(stop, room, self._make_mark())
        self._asked.append(answer)
        self._answers.setdefault(state, deque()).append(answer)

    def require(self, state: StageSlot) -> None:
        """Raise EngineError if a chunk of the slot is known to have left something else than numbers."""
        answers = self._answers.get(state)
        while answers and answers[0].there.is_passed():
            answer = answers.popleft()
            answer.look()
            if not answer.is_finite:
                answers.clear()
                raise not_finite("the prompt")
