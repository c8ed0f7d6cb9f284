"""An engine that is told what to say: the interface of `EngineProcess` without a process, a model or torch.

It serves up to `slots` requests at once, first come first served, a token every `seconds_a_token`; remembers what it
was asked; and can be made to die, to stall, to fail while it loads.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import strata.models_shipped
from strata.engine.client import EngineLost
from strata.engine.messages import (
    Cancel,
    Drawn,
    Ended,
    FromEngine,
    LoadFailed,
    Loading,
    ModelFacts,
    PromptRead,
    ReadProgress,
    Ready,
    SlotView,
    Statistics,
    Stop,
    Submit,
    ToEngine,
    TokenizerFiles,
)
from strata.engine.request import TokenRequest
from strata.sampling.draw import Draw, TokenLogprob
from strata.text.tokenizer import read_tokenizer_files, tokenizer_from_files
from strata.types import FinishReason, Usage

SLOTS = 2
CONTEXT = 512
NOTHING: Mapping[str, float] = {}


@cache
def tokenizer_files() -> TokenizerFiles:
    """Of the shipped model."""
    return read_tokenizer_files(strata.models_shipped.default_path())


@cache
def tokenizer():
    return tokenizer_from_files(tokenizer_files())


def facts(slots: int = SLOTS, context: int = CONTEXT, sampling: Mapping[str, float] = NOTHING) -> ModelFacts:
    ends = frozenset(tokenizer().eos_token_ids)
    return ModelFacts(
        "pocket", "qwen4_exp", context, 65536, 8192, 1_000_000, 2_000_000, slots, 1 << 20, ends, tokenizer_files(), (),
        sampling,
    )  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """What the fake says to one request."""

    text: str = "Hello there, friend."
    token_ids: tuple[int, ...] | None = None  # instead of the text
    ends_itself: bool = True  # with the end-of-turn token
    read_seconds: float = 0.0
    seconds_a_token: float = 0.0
    window: int = 1  # tokens a window
    error: str | None = None
    is_callers_mistake: bool = False
    notices: tuple[str, ...] = ()
    cached: int = 0


@dataclass
class Script:
    """What all processes of one server say; shared by a test and the fakes."""

    reply: Callable[[TokenRequest], Reply] = lambda request: Reply()
    slots: int = SLOTS
    context: int = CONTEXT
    sampling: Mapping[str, float] = field(default_factory=dict)  # that the model's makers recommend
    load_seconds: float = 0.0
    load_error: LoadFailed | None = None
    dies_at_load: bool = False
    engines: list["FakeEngine"] = field(default_factory=list)

    def launch(self) -> "FakeEngine":
        engine = FakeEngine(self)
        self.engines.append(engine)
        return engine

    @property
    def engine(self) -> "FakeEngine":
        """The one that runs now."""
        return self.engines[-1]


class FakeEngine:
    """See the module."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.received: list[ToEngine] = []
        self.requests: dict[int, TokenRequest] = {}
        self.ended: list[int] = []
        self.was_killed = False
        self._loop = asyncio.get_running_loop()
        self._ours, self._theirs = socket.socketpair()
        self._messages: deque[FromEngine] = deque()
        self._death: str | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: deque[int] = deque()
        self._trouble: str | None = None
        self._closing = threading.Lock()
        self._loading = self._loop.create_task(self._load())

    @property
    def running(self) -> set[int]:
        """Requests in a slot."""
        return set(self._tasks)

    def fileno(self) -> int:
        return self._ours.fileno()

    @property
    def pid(self) -> int:
        return os.getpid()

    def send(self, message: ToEngine) -> None:
        self.received.append(message)
        with contextlib.suppress(RuntimeError):  # the loop is gone: so is the server
            self._loop.call_soon_threadsafe(self._take, message)

    def receive(self, timeout: float | None) -> FromEngine | None:
        with contextlib.suppress(BlockingIOError):
            self._ours.recv(1 << 16, socket.MSG_DONTWAIT)
        if self._messages:
            return self._messages.popleft()
        if self._death is not None:
            raise EngineLost(self._death)
        return None

    def trouble(self) -> str | None:
        return self._trouble

    def wait(self, timeout: float | None) -> int | None:
        return 0

    def kill(self) -> None:
        self.was_killed = True
        with self._closing, contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def die(self, how: str = "the engine's process was ended by signal 9") -> None:
        """As if the process had been killed."""
        self._end()
        self._messages.clear()
        self._death = how
        self._wake()

    def stall(self) -> None:
        """From now on nothing comes, and `trouble` says so."""
        self._end()
        self._trouble = "the engine's process has given no sign of life for 15 seconds"

    def tell(self, message: FromEngine) -> None:
        """Send something to the server."""
        self._messages.append(message)
        self._wake()

    def statistics(self) -> Statistics:
        views = tuple(
            SlotView(place, "decoding" if place < len(self._tasks) else "idle", None, 0, 0, 0, 0, 0.0)
            for place in range(self.script.slots)
        )
        return Statistics(1.0, 0.5, 100, 10, 50, 50, 8, 4, len(self._waiting), views, {"cpu": 7}, {"weights": 1 << 20})

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._theirs.send(b"!", socket.MSG_DONTWAIT)

    def _end(self) -> None:
        for task in [*self._tasks.values(), self._loading]:
            task.cancel()
        self._tasks.clear()
        self._waiting.clear()

    async def _load(self) -> None:
        script = self.script
        self.tell(Loading("loading the model", 1, 2))
        await asyncio.sleep(script.load_seconds)
        if script.load_error is not None:
            self.tell(script.load_error)
        if script.dies_at_load or script.load_error is not None:
            self._death = "the engine's process has ended with code 1"
            self._wake()
            return
        self.tell(Ready(facts(script.slots, script.context, script.sampling), 0.1))
        self.tell(self.statistics())

    def _take(self, message: ToEngine) -> None:
        if self._death is not None or self._trouble is not None:
            return
        if isinstance(message, Submit):
            self.requests[message.request_id] = message.request
            self._waiting.append(message.request_id)
            self._fill_slots()
        elif isinstance(message, Cancel):
            number = message.request_id
            task = self._tasks.pop(number, None)
            if task is not None:
                task.cancel()
            if task is not None or number in self._waiting:
                if number in self._waiting:
                    self._waiting.remove(number)
                self._end_request(
                    number, Ended(number, FinishReason.CANCELLED, _usage(self.requests[number], 0, Reply()))
                )
        elif isinstance(message, Stop):
            self._end()
            self._death = "the engine's process has ended with code 0"
            self._wake()

    def _fill_slots(self) -> None:
        while self._waiting and len(self._tasks) < self.script.slots:
            number = self._waiting.popleft()
            self._tasks[number] = self._loop.create_task(self._serve(number, self.requests[number]))

    def _end_request(self, number: int, ended: Ended) -> None:
        self.ended.append(number)
        self.tell(ended)
        self._fill_slots()

    async def _serve(self, number: int, request: TokenRequest) -> None:
        reply = self.script.reply(request)
        ended = None
        if reply.error is not None:
            ended = Ended(number, FinishReason.ERROR, _usage(request, 0, reply), reply.error, reply.is_callers_mistake)
        else:
            ended = await self._say(number, request, reply)
        self._tasks.pop(number, None)
        self._end_request(number, ended)

    async def _say(self, number: int, request: TokenRequest, reply: Reply) -> Ended:
        total = len(request.prompt)
        self.tell(ReadProgress(number, total // 2, total, reply.cached))
        await asyncio.sleep(reply.read_seconds)
        self.tell(ReadProgress(number, total, total, reply.cached))
        if request.prompt_logprobs is not None:
            scores = [Draw(request.prompt[0]), *(_scored(t, request.prompt_logprobs) for t in request.prompt[1:])]
            self.tell(PromptRead(number, tuple(scores)))
        token_ids = _token_ids(request, reply)
        most = request.options.max_tokens or request_room(self.script, request)
        said = 0
        while said < min(len(token_ids), most):
            window = token_ids[said : min(said + reply.window, most)]
            said += len(window)
            draws = tuple(_scored(t, request.options.logprobs) for t in window)
            self.tell(Drawn(number, draws, _usage(request, said, reply)))
            await asyncio.sleep(reply.seconds_a_token * len(window))
        is_stop = token_ids[:said] and token_ids[said - 1] in request.stop_token_ids
        reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
        return Ended(number, reason, _usage(request, said, reply), notices=reply.notices)


def request_room(script: Script, request: TokenRequest) -> int:
    return script.context - len(request.prompt)


def _token_ids(request: TokenRequest, reply: Reply) -> tuple[int, ...]:
    ids = reply.token_ids
    if ids is None:
        ids = tuple(tokenizer().encode(reply.text, control_tokens=True))
    ends = sorted(request.stop_token_ids)
    if reply.ends_itself and ends:
        return (*ids, ends[0])
    return ids


def _scored(token_id: int, top: int | None) -> Draw:
    if top is None:
        return Draw(token_id)
    return Draw(token_id, -0.25, tuple(TokenLogprob(token_id + k, -0.25 - k) for k in range(top)))


def _usage(request: TokenRequest, said: int, reply: Reply) -> Usage:
    return Usage(len(request.prompt), said, said, 0, 0, 0.01, 0.02, cached_tokens=reply.cached, waiting_seconds=0.001)
