"""The leader's end of the line to the stage of another process: calls go, answers come, a loss is told.

Knows calls as messages, not what they do.
"""

import contextlib
import queue
import threading
from typing import Any

from strata.engine.remote_line import Line, LineLost
from strata.engine.stage_calls import Answer, CallFailed, End
from strata.errors import DeviceLostError, EngineError, ModelError

ANSWER_SECONDS = 300.0  # as long as a step may take
EXPLAIN_SECONDS = 2.0  # behind the end of another connection, until the line's own comes


class StageLine:
    """Made by `open`. For one thread; `require_well` for any."""

    def __init__(self, rank: int, line: Line) -> None:
        self.rank = rank
        self._line = line
        self._loss: str | None = None
        self._is_users_mistake = False
        self._has_ended = False  # because this side wants it
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()  # None: nothing more comes
        self._is_closed = threading.Event()  # nothing more comes

    @classmethod
    def open(cls, rank: int, line: Line) -> "StageLine":
        """Begin to listen."""
        opened = cls(rank, line)
        threading.Thread(target=opened._listen, name=f"stage of rank {rank}", daemon=True).start()
        return opened

    @property
    def is_well(self) -> bool:
        """Whether calls can be told."""
        return self._loss is None and not self._has_ended

    def explain(self) -> None:
        """Something else says that the other process is gone: raises what `require_well` raises, if it knows soon."""
        self._is_closed.wait(EXPLAIN_SECONDS)
        self.require_well()

    def require_well(self) -> None:
        """Raises DeviceLostError if the other process failed or is gone, ModelError if a user can mend it."""
        if self._loss is not None:
            kind = ModelError if self._is_users_mistake else DeviceLostError
            raise kind(f"the stage of rank {self.rank} is lost: {self._loss}")

    def tell(self, call: Any) -> None:
        """Send a call that is not answered. Raises what `require_well` raises."""
        self.require_well()
        try:
            self._line.send(call)
        except LineLost as loss:
            self._is_closed.wait(EXPLAIN_SECONDS)  # it may have said why
            self._loss = self._loss or str(loss)
            self.require_well()

    def ask(self, call: Any) -> Answer:
        """Send a call and wait for its answer. Raises EngineError with the answer's problem, or what `tell` raises."""
        self.tell(call)
        return self.answer()

    def answer(self) -> Answer:
        """Of a call that asks and was told. Raises what `ask` raises."""
        answer = self.next_message()
        if not isinstance(answer, Answer):
            raise DeviceLostError(f"the stage of rank {self.rank} answered with {type(answer).__name__}")
        if answer.problem is not None:
            raise EngineError(f"the stage of rank {self.rank}: {answer.problem}")
        return answer

    def next_message(self, seconds: float = ANSWER_SECONDS) -> Any:
        """What the stage says next. Raises what `tell` raises, also if it says nothing in time."""
        try:
            message = self._messages.get(timeout=seconds)
        except queue.Empty:
            self._loss = f"it has said nothing for {seconds:.0f} s"
            message = None
        if message is None:
            self.require_well()
        return message

    def end(self, reason: str = "") -> None:
        """Tell the other process to end; one that is gone is not told."""
        self._has_ended = True
        with contextlib.suppress(LineLost):
            self._line.send(End(reason))
        self._line.close()

    def _listen(self) -> None:
        try:
            while self._loss is None:
                message = self._line.receive()
                if isinstance(message, CallFailed):
                    self._is_users_mistake, self._loss = message.is_users_mistake, message.error
                else:
                    self._messages.put(message)
        except LineLost as loss:
            if not self._has_ended:
                self._loss = self._loss or str(loss)
        self._is_closed.set()
        self._messages.put(None)
