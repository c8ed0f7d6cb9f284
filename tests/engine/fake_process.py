"""An engine's process without a model, which starts in a fraction of a second and fails as it is told to.

Run by `engine.client` in place of the real one. What happens is said by the first token of a prompt.
"""

import socket
import sys
import threading
import time

from strata.engine.messages import Drawn, Ended, FromEngine, Load, ModelFacts, Statistics, TokenizerFiles
from strata.engine.process import Loop, serve
from strata.engine.request import TokenRequest
from strata.errors import DeviceLostError, EngineError, ModelError
from strata.sampling.draw import Draw
from strata.types import FinishReason, ProgressCallback, Usage

ANSWER, CRASH, HANG, ENDLESS, LOSE_GPU, READ_EXPERTS, LOSE_LATER = range(7)
READING_SECONDS = 4.0
FACTS = ModelFacts(
    "fake", "none", 100, 100, 10, 0, 0, 1, 0, frozenset({1}), TokenizerFiles({"a": [1]}, {}, (), None, "x"), ()
)


class FakeLoop:
    """See `Loop`: a request gets its own prompt back."""

    def __init__(self) -> None:
        self._waiting: dict[int, TokenRequest] = {}
        self._out: list[FromEngine] = []
        self.turns = 0
        self.read = 0
        self.is_lost = False

    @property
    def arrivals(self) -> int:
        if self.is_lost:
            raise DeviceLostError("a stage of another process is gone")
        return self.read

    waiting_for = "a window waits for the CPU's answer to request 7"

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._out)

    def submit(self, request_id: int, request: TokenRequest) -> None:
        self._waiting[request_id] = request

    def cancel(self, request_id: int, keep_tokens: int | None = None) -> None:
        if self._waiting.pop(request_id, None) is not None:
            self._out.append(Ended(request_id, FinishReason.CANCELLED, usage(keep_tokens or 0)))

    def turn(self) -> list[FromEngine]:
        self.turns += 1
        for number, request in list(self._waiting.items()):
            kind = request.prompt[0]
            if kind == CRASH:
                raise RuntimeError("shapes do not fit")
            if kind == LOSE_GPU:
                raise DeviceLostError("the GPU failed while it computed")
            if kind == HANG:
                threading.Event().wait()
            while kind == READ_EXPERTS and self.read < READING_SECONDS / 0.1:
                time.sleep(0.1)
                self.read += 1
            self.is_lost = kind == LOSE_LATER
            self._out.append(Drawn(number, tuple(map(Draw, request.prompt)), usage(len(request.prompt))))
            if kind == ENDLESS:
                time.sleep(0.01)
            else:
                del self._waiting[number]
                self._out.append(Ended(number, FinishReason.STOP, usage(len(request.prompt))))
        out, self._out = self._out, []
        return out

    def statistics(self) -> Statistics:
        return Statistics(time.monotonic(), 0.0, 0, 0, 0, self.turns, 0, 0, len(self._waiting), ())


def usage(tokens: int) -> Usage:
    return Usage(1, tokens, 0, 0, 0, 0.0, 0.0)


def load(message: Load, on_progress: ProgressCallback) -> tuple[Loop, ModelFacts]:
    if message.model == "wrong":
        raise ModelError("there is no model of that name")
    if message.model == "large":
        raise EngineError("out of memory while the weights were read")
    if message.model == "crash":
        raise RuntimeError("a mistake in the loader")
    for done in range(1001):
        on_progress("loading", done, 1000)
    return FakeLoop(), FACTS


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), load))
