"""What a reply means: its tokens become pieces of reasoning, of content and of calls, each as early as it is certain.

Knows the order in which these may come and what belongs to none of them; how a dialect writes a call is
`tool_calls/<dialect>.py`'s matter, how a client is told is the server's.

Rules, in the words of the events:
- Reasoning begins where the prompt left it open, or with its opening marker in front of everything else. Newlines at
  both of its ends, and those behind its closing marker, belong to the markers.
- A call may stand anywhere, also in reasoning that was never closed. White space in front of it belongs to it; so does
  white space behind it, unless text follows.
- What does not parse as a call before its name is known is text. A call that breaks behind its name ends incomplete,
  and text goes on where it broke.
- A call of a tool that was not offered is a call: the client tells the model that there is no such tool.
- Stop strings are looked for in the content, as it was written; never in reasoning, arguments and markers.
- Without tools there are no calls: their markers are content.
"""

import secrets
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from strata.sampling.draw import Draw
from strata.text.lexemes import Lexeme, MarkerLexer
from strata.text.reasoning import ReasoningMarkers
from strata.text.reply_events import (
    ContentText,
    ReasoningText,
    ReplyEvent,
    StopFound,
    ToolArguments,
    ToolCallBegun,
    ToolCallEnded,
    UnfinishedCall,
)
from strata.text.stop_strings import StopMatcher
from strata.text.token_ledger import TokenLedger
from strata.text.tokenizer import Tokenizer
from strata.text.tool_calls.dialect import BlockStep, CallArguments, CallBlock, CallName, CallPart, Dialect, Tool

_WHITE = " \t\r\n"
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class ReplyFormat:
    """How the reply to one prompt is written."""

    reasoning: ReasoningMarkers | None = None
    begins_in_reasoning: bool = False  # the prompt ends inside it
    dialect: Dialect | None = None
    tools: Sequence[Tool] = ()  # those offered; without any, nothing is a call


class _Part(Enum):
    START = auto()  # only white space so far: reasoning may begin
    REASONING_START = auto()  # newlines behind the opening marker
    REASONING = auto()
    CONTENT_START = auto()  # newlines behind the closing marker
    CONTENT = auto()
    OVER = auto()


def new_call_id() -> str:
    """An id that no other call has."""
    return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))


class ReplyReader:
    """Reads one reply: feed it every token, then call `finish`; after a `StopFound`, which is the last event, nothing.

    `end_ids`: tokens that end the reply and have no text. `shows_tokens`: whether `TokenShown` comes for each token.
    The events of a reply joined do not depend on how it is cut into tokens, but for those.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        format: ReplyFormat,
        stops: Iterable[str] = (),
        end_ids: Iterable[int] = (),
        shows_tokens: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._format = format
        self._dialect = format.dialect if format.tools else None
        self._lexer = MarkerLexer(tokenizer, _markers(format.reasoning, self._dialect))
        self._ledger = TokenLedger(tokenizer, shows_tokens)
        self._end_ids = frozenset(end_ids)
        self._stop_strings = tuple(stops)
        self._stops = StopMatcher(self._stop_strings)
        self._new_id = new_id
        self._part = _Part.START if format.reasoning is not None else _Part.CONTENT
        if format.begins_in_reasoning:
            self._part = _Part.REASONING_START
        self._edge = ""  # white space that the next characters decide about: part of the text or of a marker
        self._block: CallBlock | None = None
        self._is_closing_due = False  # a block ended without its closing marker, which may still come
        self._is_marked = False  # the block began with its opening marker
        self._is_behind_call = False  # nothing but white space since
        self._has_text = False  # content that is not white space has come
        self._calls = 0
        self._calls_before_block = 0
        self._arguments: list[str] = []
        self._events: list[ReplyEvent] = []

    @property
    def is_over(self) -> bool:
        """Whether a stop string was found: the reply takes no more tokens."""
        return self._part is _Part.OVER

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self._calls

    @property
    def understood(self) -> int:
        """Of how many characters of the reply it is known what they are; at its end, unless a stop came, of all."""
        return self._ledger.settled

    def feed(self, draw: Draw) -> list[ReplyEvent]:
        """What this token makes certain. After a stop was found, nothing."""
        if self.is_over:
            return []
        is_end = draw.token_id in self._end_ids
        lexemes = [] if is_end else self._lexer.feed(draw.token_id, shows_special=self._block is not None)
        self._ledger.add(draw, self._lexer.characters, is_end)
        self._take(lexemes)
        return self._handed_out()

    def finish(self) -> list[ReplyEvent]:
        """The reply ended: what was held back."""
        self._take(self._lexer.finish())
        if self._block is not None and not self.is_over:
            self._step(self._block.finish(), is_end=True)
        if self._part is _Part.START:
            self._leave_start()
        if not self.is_over:
            self._release()
            self._part = _Part.OVER
        self._events += self._ledger.finish()
        return self._handed_out()

    def _handed_out(self) -> list[ReplyEvent]:
        events, self._events = self._events, []
        return events

    def _take(self, lexemes: Iterable[Lexeme]) -> None:
        for lexeme in lexemes:
            if self.is_over:
                return
            if self._block is not None:
                self._step(self._block.feed(lexeme.text))
            elif not (lexeme.is_marker and self._take_marker(lexeme.text)):
                self._take_text(lexeme.text)

    def _take_marker(self, marker: str) -> bool:
        """Act on a marker that means something here; False if it is text."""
        reasoning, dialect = self._format.reasoning, self._dialect
        if dialect is not None and self._opens_block(marker, dialect):
            self._is_closing_due = False
            self._calls_before_block = self._calls
            self._is_marked = marker == dialect.opening
            self._block = dialect.block(self._format.tools)
            self._step(self._block.feed(marker))
            return True
        if dialect is not None and marker == dialect.closing and self._is_closing_due:
            self._is_closing_due = False
            self._drop_edge()
            self._settle(len(marker), is_content=False)
            return True
        opens = reasoning is not None and marker == reasoning.opening
        if opens and self._part in (_Part.START, _Part.REASONING_START, _Part.CONTENT_START):
            self._drop_edge()
            self._part = _Part.REASONING_START
        elif reasoning is not None and marker == reasoning.closing and self._in_reasoning:
            self._close_reasoning()
        else:
            return False
        self._settle(len(marker), is_content=False)
        return True

    def _opens_block(self, marker: str, dialect: Dialect) -> bool:
        if marker in dialect.first_openings:
            return not self._has_text and not self._in_reasoning
        return marker == dialect.opening or marker in dialect.bare_openings

    @property
    def _in_reasoning(self) -> bool:
        return self._part in (_Part.REASONING, _Part.REASONING_START)

    def _close_reasoning(self) -> None:
        self._show_reasoning(len(self._edge.rstrip("\n")))
        self._drop_edge()
        self._part = _Part.CONTENT_START

    def _take_text(self, text: str) -> None:
        if self._part is _Part.START:
            self._edge += text
            if self._edge.strip(_WHITE):
                self._leave_start()
            return
        if self._part in (_Part.REASONING_START, _Part.CONTENT_START):
            kept = text.lstrip("\n")
            self._settle(len(text) - len(kept), is_content=False)
            if not kept:
                return
            text = kept
            self._leave_first_newlines()
        if self._part is _Part.REASONING:
            self._edge += text
            self._show_reasoning(len(self._edge.rstrip(_WHITE)))
        else:
            self._take_content(text)

    def _leave_start(self) -> None:
        """No reasoning came: what waited is content."""
        text, self._edge = self._edge, ""
        self._part = _Part.CONTENT
        self._take_content(text)

    def _leave_first_newlines(self) -> None:
        self._part = _Part.REASONING if self._in_reasoning else _Part.CONTENT

    def _take_content(self, text: str) -> None:
        self._has_text = self._has_text or text.strip(_WHITE) != ""
        found = self._stops.feed(text)
        self._edge += found.text
        if found.stop is not None:
            position = self._ledger.settled + len(self._edge) + len(found.stop)
            self._show_content(len(self._edge))
            self._settle(len(found.stop), is_content=False)
            self._events += self._ledger.finish()
            self._events.append(StopFound(found.stop, self._ledger.tokens_until(position)))
            self._part = _Part.OVER
        else:
            self._show_content(len(self._edge if self._dialect is None else self._edge.rstrip(_WHITE)))

    def _release(self) -> None:
        """Everything held back is text after all, but for white space behind a call."""
        if self._in_reasoning:
            self._show_reasoning(len(self._edge))
            return
        self._edge += self._stops.finish()
        if self._is_behind_call and not self._edge.strip(_WHITE):
            self._drop_edge()
        self._show_content(len(self._edge))

    def _show_reasoning(self, characters: int) -> None:
        """The first of the characters held back are reasoning."""
        if characters:
            self._events.append(ReasoningText(self._edge[:characters]))
            self._settle(characters, is_content=False)
            self._edge = self._edge[characters:]

    def _show_content(self, characters: int) -> None:
        """The first of the characters held back are content."""
        if characters:
            self._is_behind_call = False
            self._events.append(ContentText(self._edge[:characters]))
            self._settle(characters, is_content=True)
            self._edge = self._edge[characters:]

    def _drop_edge(self) -> None:
        """The white space held back belongs to a marker."""
        self._settle(len(self._edge), is_content=False)
        self._edge = ""

    def _settle(self, characters: int, is_content: bool) -> None:
        self._events += self._ledger.settle(characters, is_content)

    def _step(self, step: BlockStep, is_end: bool = False) -> None:
        """Take over what a block has understood."""
        for part in step.parts:
            self._take_call_part(part)
        self._settle(step.settled, is_content=False)
        if not step.is_over:
            return
        self._block = None
        self._is_closing_due = self._calls > self._calls_before_block and not step.is_closed
        if is_end and self._is_marked and step.rest.strip(_WHITE):
            self._leave_text()
            self._events.append(UnfinishedCall(step.rest))
            self._settle(len(step.rest), is_content=False)
        elif step.rest:
            self._take_text(step.rest)

    def _take_call_part(self, part: CallPart) -> None:
        if isinstance(part, CallName):
            self._begin_call(part.name)
        elif isinstance(part, CallArguments):
            self._arguments.append(part.text)
            self._events.append(ToolArguments(self._calls - 1, part.text))
        else:
            self._is_behind_call = True
            self._events.append(ToolCallEnded(self._calls - 1, part.is_complete, "".join(self._arguments)))

    def _begin_call(self, name: str) -> None:
        self._leave_text()
        self._events.append(ToolCallBegun(self._calls, self._new_id(), name))
        self._calls += 1
        self._arguments = []

    def _leave_text(self) -> None:
        """A call follows: what waited is text, up to the white space in front of it."""
        if self._part is _Part.START:
            self._part = _Part.CONTENT
        elif self._part in (_Part.REASONING_START, _Part.CONTENT_START):
            self._leave_first_newlines()
        if self._part is _Part.CONTENT:
            self._edge += self._stops.finish()
            self._stops = StopMatcher(self._stop_strings)
            self._show_content(len(self._edge.rstrip(_WHITE)))
        self._drop_edge()


def _markers(reasoning: ReasoningMarkers | None, dialect: Dialect | None) -> list[str]:
    markers = [] if reasoning is None else [reasoning.opening, reasoning.closing]
    if dialect is not None:
        markers += [dialect.opening, dialect.closing, *dialect.bare_openings, *dialect.first_openings]
    return [marker for marker in markers if marker]
