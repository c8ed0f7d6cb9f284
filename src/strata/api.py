"""The engine as Python users see it: text or messages in, a stream of text out.

Knows how text, token ids and the engine's events become each other; knows no model, file or tensor.
"""

import contextlib
import dataclasses
import operator
import os
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from strata.build import LoadedModel, load_model
from strata.engine.control import RunControl
from strata.engine.request import RunEnded, TokenRequest, TokensDrawn
from strata.errors import EngineError, ModelError, RequestError, SettingsError
from strata.sampling.draw import Draw
from strata.sampling.options import SamplingOptions
from strata.scheduler.due import Limits
from strata.scheduler.runner import RequestRunner
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings, GenerationSettings, Settings, check, describe, resolve
from strata.text.messages import checked_messages
from strata.text.stop_strings import StopMatcher
from strata.text.tokenizer import Tokenizer
from strata.text.turn_starts import TurnStarts
from strata.types import Finished, FinishReason, Message, ProgressCallback, TextPiece, Usage

CLOSED = "this engine is closed: make a new one"
CLOSED_REPLY = "this reply was closed before it ended; closing an engine closes its replies"


class Engine:
    """A loaded model that answers. Use it as a context manager, or call `close`.

    `model` is a model directory, by default the small model that ships with strata. What is not given is taken from
    the environment (STRATA_THREADS ...), then from the settings file, then from the defaults (docs/settings.md).
    `more`: any other setting of its [engine] table, such as slots=2. `settings`: resolved ones, instead of all of them.
    SettingsError or ModelError names what does not work. `progress(stage, done, total)` is called while the weights
    and while a prompt are read. Several generations may be under way at once, in several threads: whoever waits for the
    next piece of one drives them all, `settings.engine.slots` of them side by side. A conversation that has ended stays
    in its slot: its next turn reads only what is new (`usage.cached_tokens`).
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        threads: int | None = None,
        dtype: str | None = None,
        context: int | None = None,
        drafts: int | None = None,
        progress: ProgressCallback | None = None,
        settings: Settings | None = None,
        **more: Any,
    ) -> None:
        said = {"threads": threads, "dtype": dtype, "context": context, "drafts": drafts} | more
        self.settings = _settings_of({name: value for name, value in said.items() if value is not None}, settings)
        if not isinstance(model, str | os.PathLike | None):
            raise ModelError(f"model is {model!r}; it must be the path of a model directory or GGUF file")
        directory = None if model is None else Path(model)
        self._progress = progress
        self._loaded: LoadedModel | None = load_model(directory, self.settings.engine, progress)
        self._turns = TurnStarts(self._loaded.tokenizer)
        self._runner: RequestRunner | None = make_runner(self._loaded, self.settings.engine)
        self._replies: weakref.WeakSet[Generation] = weakref.WeakSet()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where the model lies."""
        return self._ready().directory

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its reply together."""
        return self._ready().engine.context

    @property
    def has_chat_template(self) -> bool:
        """Whether the model can be talked with in messages."""
        return self._ready().tokenizer.chat_template is not None

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences about what was left out when the model was loaded."""
        return self._ready().notices

    def generate(self, prompt: str | Sequence[int], options: SamplingOptions | None = None) -> "Generation":
        """Continue a text or token ids. Raises RequestError at once if the request cannot be served.

        Control tokens in text stay text; give token ids where they are wanted.
        """
        loaded = self._ready()
        if isinstance(prompt, str):
            return self._start(loaded, loaded.tokenizer.encode(prompt, add_special_tokens=True), options)
        return self._start(loaded, _token_ids_of(prompt), options)

    def chat(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        options: SamplingOptions | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> "Generation":
        """Answer a conversation, by the model's chat template. Raises RequestError or TemplateError at once.

        A message has a role (system, user, assistant, tool; developer is system) and a content: text, or a list of
        {"type": "text", "text": ...}. Other fields, such as tool_calls, are the template's.
        """
        loaded = self._ready()
        token_ids = loaded.tokenizer.encode_chat(checked_messages(messages), tools)
        return self._start(loaded, token_ids, options, self._turns.of(token_ids))

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text; control tokens in it stay text."""
        return self._ready().tokenizer.encode(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._ready().tokenizer.decode(token_ids)

    def close(self) -> None:
        """Let go of the model; calling it again does nothing.

        Replies under way end: their next piece raises RequestError. One that has ended keeps what it has.
        """
        for reply in list(self._replies):
            reply.close()
        if self._loaded is not None and self._loaded.tokenizer.chat_template is not None:
            self._loaded.tokenizer.chat_template.close()
        self._loaded = self._runner = None

    def _ready(self) -> LoadedModel:
        if self._loaded is None:
            raise RequestError(CLOSED)
        return self._loaded

    def _start(
        self,
        loaded: LoadedModel,
        token_ids: Sequence[int],
        options: SamplingOptions | None,
        boundaries: tuple[int, ...] = (),
    ) -> "Generation":
        if options is None:
            options = default_options(self.settings.generation)
        if not isinstance(options, SamplingOptions):
            raise RequestError(f"options is of type {type(options).__name__}; it must be SamplingOptions(...)")
        options = options.seeded()
        ends = frozenset() if options.ignore_eos else loaded.end_of_text_ids
        stops = ends | frozenset(options.stop_token_ids)
        request = TokenRequest(tuple(token_ids), options, stops, boundaries=boundaries)
        loaded.engine.check(request)
        control = RunControl(self._progress)
        assert self._runner is not None, "what is loaded has its runner"
        events = self._runner.run(request, control)
        reply = Generation(request, events, loaded.tokenizer, control.cancel, control.keep)
        self._replies.add(reply)
        return reply


def make_runner(loaded: LoadedModel, settings: EngineSettings) -> RequestRunner:
    """What runs requests of token ids on a loaded model, in this process."""

    def new_scheduler() -> Scheduler:
        loaded.engine.forget_all()
        limits = Limits.of(settings, loaded.slots, loaded.engine.chunk_rows, loaded.is_piped, loaded.groups)
        return Scheduler(loaded.engine, limits)

    return RequestRunner(new_scheduler)


def _settings_of(said: Mapping[str, Any], settings: Settings | None) -> Settings:
    """What is in force: the settings given, or what was said as arguments and what the environment and file say."""
    if settings is not None:
        if said:
            raise SettingsError(f"give settings, or {', '.join(said)}: not both")
        return settings
    known = describe(EngineSettings)
    for name, value in said.items():
        if name not in known:
            raise SettingsError(f"Engine has no setting {name}; there are {', '.join(known)}")
        check(name, value, *known[name], f"{name}=... of Engine")
    return resolve(said)


def _token_ids_of(prompt: Sequence[int]) -> list[int]:
    """Whole numbers of any library. Raises RequestError for anything else, and for bytes, which are none of ids."""
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
        raise RequestError(f"prompt is of type {type(prompt).__name__}; it must be text or a list of token ids")
    token_ids = []
    for index, token in enumerate(prompt):
        try:
            token_ids.append(operator.index(token))
        except TypeError:
            raise RequestError(f"prompt[{index}] is {token!r}; token ids are whole numbers") from None
    return token_ids


def default_options(settings: GenerationSettings, **changes: Any) -> SamplingOptions:
    """The options that a request gets unless it says otherwise, with some of them changed."""
    return SamplingOptions(**(dataclasses.asdict(settings) | changes))


class Generation(Iterator[TextPiece | Finished]):
    """A reply under way: iterate over its pieces; the last event is always `Finished`.

    Made by `Engine.generate` and `Engine.chat`. Not for several threads, except `cancel`.
    """

    def __init__(
        self,
        request: TokenRequest,
        events: Generator[TokensDrawn | RunEnded, None, None],
        tokenizer: Tokenizer,
        cancel: Callable[[], None],
        keep: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        self.request = request
        self.finished: Finished | None = None
        self._events = events
        self._ends = request.stop_token_ids
        self._text = tokenizer.detokenizer()
        self._stops = StopMatcher(request.options.stop)
        self._cancel = cancel
        self._keep = keep  # told how many tokens the reply has if it ends in front of some that came
        self._waiting: deque[TextPiece | Finished] = deque()
        self._texts: list[str] = []
        self._is_closed = False

    @property
    def seed(self) -> int | None:
        """The seed with which this reply can be had again; None if nothing is drawn."""
        return None if self.request.options.greedy else self.request.options.seed

    def cancel(self) -> None:
        """End the reply after the step that is under way; may be called from any thread or a signal handler."""
        self._cancel()

    def close(self) -> None:
        """Let go of the engine; unless the reply has ended, its next piece raises RequestError. From any thread."""
        self._is_closed = True
        self._cancel()
        with contextlib.suppress(ValueError):  # another thread is inside; what it waits for ends by the cancelling
            self._events.close()

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> TextPiece | Finished:
        if self._is_closed and self.finished is None:
            raise RequestError(CLOSED_REPLY)
        while not self._waiting:
            if self.finished is not None:
                raise StopIteration
            came = next(self._events, None)
            if self._is_closed:  # by another thread, meanwhile
                self._events.close()
                raise RequestError(CLOSED_REPLY)
            if came is None:  # an exception of an earlier step ended the events
                raise StopIteration
            self._take(came)
        event = self._waiting.popleft()
        if isinstance(event, TextPiece):
            self._texts.append(event.text)
        return event

    def text(self) -> str:
        """The text of the whole reply, of pieces that were read before too. Raises EngineError if the engine failed."""
        for _ in self:
            pass
        if self.finished is not None and self.finished.error is not None:
            raise EngineError(self.finished.error)
        return "".join(self._texts)

    def _take(self, event: TokensDrawn | RunEnded) -> None:
        if isinstance(event, RunEnded):
            self._end(event.reason, event.usage, event.error)
            return
        unused = len(event.draws)
        for draw in event.draws:
            unused -= 1
            if draw.token_id in self._ends:
                continue  # it belongs to the reply's tokens, not to its text
            found = self._stops.feed(self._text.feed(draw.token_id))
            self._waiting.append(_piece(found.text, draw))
            if found.stop is not None:
                kept = dataclasses.replace(event.usage, completion_tokens=event.usage.completion_tokens - unused)
                self.finished = Finished(FinishReason.STOP, kept, stop_string=found.stop)
                self._waiting.append(self.finished)
                self._keep(kept.completion_tokens)
                self._events.close()  # lets go of the slot
                return

    def _end(self, reason: FinishReason, usage: Usage, error: str | None) -> None:
        """Hand out what was held back; it may still hold a stop string, completed by the last characters."""
        found = self._stops.feed(self._text.finish())
        rest = found.text if found.stop is not None else found.text + self._stops.finish()
        if rest:
            self._waiting.append(TextPiece(rest))
        if found.stop is not None:
            reason = FinishReason.STOP
        self.finished = Finished(reason, usage, stop_string=found.stop, error=error)
        self._waiting.append(self.finished)


def _piece(text: str, draw: Draw) -> TextPiece:
    top = tuple((entry.token_id, entry.logprob) for entry in draw.top_logprobs)
    return TextPiece(text, draw.token_id, draw.logprob, top)
