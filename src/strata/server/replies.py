"""The replies to one prompt as parts that every API can tell in its own words.

Knows the service, the reader of replies and why a reply ends; no API and no HTTP but the status of a failure.
"""

import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from strata.engine.messages import Drawn, Ended, PromptRead, ReadProgress
from strata.engine.request import TokenRequest
from strata.errors import RequestError
from strata.sampling.draw import Draw
from strata.server.asking import as_api_error
from strata.server.errors import ApiError
from strata.server.service import EngineService, Submission
from strata.text.reply import ReplyReader
from strata.text.reply_events import (
    ContentText,
    ReasoningText,
    ReplyEvent,
    StopFound,
    TokenShown,
    ToolArguments,
    ToolCallBegun,
    ToolCallEnded,
    UnfinishedCall,
)
from strata.text.whole_calls import WholeCalls
from strata.types import FinishReason, Usage


@dataclass(frozen=True)
class Asked:
    """A prompt that is ready for the engine, and how its replies are read."""

    requests: tuple[TokenRequest, ...]  # one for each choice
    new_reader: Callable[[], ReplyReader]
    most_calls: int | None = None  # end a reply behind so many calls; None: as many as the model makes
    notices: tuple[str, ...] = ()  # what was left out of the request


@dataclass(frozen=True)
class Reading:
    """How far a prompt has been read."""

    choice: int
    progress: ReadProgress


@dataclass(frozen=True)
class PromptScored:
    """Log-probabilities of a prompt's tokens; the first token has none."""

    choice: int
    logprobs: tuple[Draw, ...]


@dataclass(frozen=True)
class Said:
    """What one decode window made certain."""

    choice: int
    events: tuple[ReplyEvent, ...]
    token_ids: tuple[int, ...]
    usage: Usage


@dataclass(frozen=True)
class Over:
    """The last part of a choice."""

    choice: int
    reason: str  # stop, length, tool_calls: the OpenAI API's words
    stop: str | None  # the stop string that ended it
    last_token_id: int | None
    usage: Usage
    reasoning_tokens: int
    notices: tuple[str, ...] = ()


ReplyPart = Reading | PromptScored | Said | Over


async def replies(service: EngineService, asked: Asked) -> AsyncGenerator[ReplyPart, None]:
    """Hand the requests over and yield what comes; closing the generator ends what still runs.

    Raises ApiError: the engine is not ready or was lost, or a request failed.
    """
    submission = service.submit(asked.requests)
    choices = [_Choice(index, asked, submission) for index in range(len(asked.requests))]
    try:
        while (found := await submission.next()) is not None:
            choice, event = found
            if isinstance(event, ReadProgress):
                yield Reading(choice, event)
            elif isinstance(event, PromptRead):
                yield PromptScored(choice, event.logprobs)
            elif isinstance(event, Drawn):
                for part in choices[choice].take(event):
                    yield part
            else:
                for part in choices[choice].finish(event):
                    yield part
    finally:
        submission.close()


class _Choice:
    """One reply under way."""

    def __init__(self, index: int, asked: Asked, submission: Submission) -> None:
        self._index = index
        self._asked = asked
        self._submission = submission
        self._reader = asked.new_reader()
        self._reasoning_tokens = 0
        self._has_reasoning = False
        self._has_answer = False
        self._last_token_id: int | None = None
        self._whole_calls = 0
        self._names: dict[int, str] = {}  # of the calls that are under way
        self._cut_off: tuple[str, ...] = ()  # a sentence for every call that stops in the middle

    def take(self, drawn: Drawn) -> list[ReplyPart]:
        """What a window's tokens mean; ends the request where the reply is over."""
        events: list[ReplyEvent] = []
        before = drawn.usage.completion_tokens - len(drawn.draws)
        for place, draw in enumerate(drawn.draws, start=1):
            found = self._understood(self._reader.feed(draw), before + place)
            events += found
            self._last_token_id = draw.token_id
            stop = next((event for event in found if isinstance(event, StopFound)), None)
            if stop is not None:
                return self._end_early(events, drawn, place, "stop", stop)
            if self._asked.most_calls is not None and self._whole_calls >= self._asked.most_calls:
                return self._end_early(events, drawn, place, "tool_calls", None)
        return [Said(self._index, tuple(events), tuple(draw.token_id for draw in drawn.draws), drawn.usage)]

    def finish(self, ended: Ended) -> list[ReplyPart]:
        """The engine has nothing more. Raises ApiError if that is a failure."""
        if ended.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            error = ended.error or "the engine ended the request"
            raise as_api_error(RequestError(error)) if ended.is_callers_mistake else ApiError(500, error)
        events = self._understood(self._reader.finish(), ended.usage.completion_tokens)
        usage = ended.usage
        stop = next((event for event in events if isinstance(event, StopFound)), None)
        if stop is not None and stop.kept_tokens < usage.completion_tokens:
            self._submission.end(self._index, keep_tokens=stop.kept_tokens)
            usage = dataclasses.replace(usage, completion_tokens=stop.kept_tokens)
        reason = "stop" if stop is not None else ended.reason.value
        if reason == "stop" and self._whole_calls:
            reason = "tool_calls"
        said = [Said(self._index, tuple(events), (), usage)] if events else []
        return [*said, self._over(reason, None if stop is None else stop.stop, usage, ended.notices)]

    def _end_early(
        self, events: list[ReplyEvent], drawn: Drawn, place: int, reason: str, stop: StopFound | None
    ) -> list[ReplyPart]:
        before = drawn.usage.completion_tokens - len(drawn.draws)
        kept = before + place if stop is None else stop.kept_tokens
        self._submission.end(self._index, keep_tokens=kept)
        usage = dataclasses.replace(drawn.usage, completion_tokens=kept)
        token_ids = tuple(draw.token_id for draw in drawn.draws[: max(0, kept - before)])
        return [
            Said(self._index, tuple(events), token_ids, usage),
            self._over(reason, None if stop is None else stop.stop, usage, ()),
        ]

    def _over(self, reason: str, stop: str | None, usage: Usage, notices: tuple[str, ...]) -> Over:
        all_notices = self._asked.notices + notices + self._cut_off
        return Over(self._index, reason, stop, self._last_token_id, usage, self._reasoning_tokens, all_notices)

    def _understood(self, events: Sequence[ReplyEvent], tokens: int) -> list[ReplyEvent]:
        """The events that can be told; counts calls, and the tokens in front of the answer if there was reasoning."""
        for event in events:
            self._has_reasoning = self._has_reasoning or isinstance(event, ReasoningText)
            self._has_answer = self._has_answer or isinstance(event, ContentText | ToolCallBegun)
            self._note_call(event)
        if self._has_reasoning and not self._has_answer:
            self._reasoning_tokens = tokens
        return [event for event in events if not isinstance(event, UnfinishedCall)]

    def _note_call(self, event: ReplyEvent) -> None:
        if isinstance(event, ToolCallBegun):
            self._names[event.index] = event.name
        elif isinstance(event, ToolCallEnded):
            name = self._names.pop(event.index)
            if event.is_complete:
                self._whole_calls += 1
            else:
                self._cut_off += (f"a call of {name!r} was cut off: it cannot be run",)
        elif isinstance(event, UnfinishedCall):
            self._cut_off += ("a call was cut off before the name of its tool was whole: it is left out",)


@dataclass
class Call:
    """A call of a tool, whole."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass
class Choice:
    """A reply, whole; calls that were cut off are not in it, `over` has a notice of each."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[TokenShown] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: tuple[Draw, ...] | None = None
    over: Over | None = None

    def take(self, event: ReplyEvent) -> None:
        """Add an event that `WholeCalls` passed on."""
        if isinstance(event, ReasoningText):
            self.reasoning += event.text
        elif isinstance(event, ContentText):
            self.content += event.text
        elif isinstance(event, ToolCallBegun):
            self.calls.append(Call(event.call_id, event.name))
        elif isinstance(event, ToolArguments):
            self.calls[event.index].arguments += event.text
        elif isinstance(event, TokenShown):
            self.tokens.append(event)


async def collect(parts: AsyncGenerator[ReplyPart, None], count: int) -> list[Choice]:
    """All of `count` replies, whole."""
    choices = [Choice() for _ in range(count)]
    whole_calls = [WholeCalls() for _ in choices]
    try:
        async for part in parts:
            choice = choices[part.choice]
            if isinstance(part, Said):
                choice.token_ids += part.token_ids
                for event in whole_calls[part.choice].feed(part.events):
                    choice.take(event)
            elif isinstance(part, PromptScored):
                choice.prompt_logprobs = part.logprobs
            elif isinstance(part, Over):
                choice.over = part
    finally:
        await parts.aclose()
    return choices
