"""What every dialect of tool calls offers: a reader of one block of calls, and the grammar in which it is written.

Knows no dialect; the dialects are listed in `dialects.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Tool:
    """A function that the model was told of."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  # JSON schema of its arguments; empty: any object
    is_strict: bool = True  # a grammar holds to all of the schema, or refuses it; otherwise to what it can of it


@dataclass(frozen=True)
class CallName:
    """A call begins."""

    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the arguments: the pieces of a call together are one JSON object."""

    text: str


@dataclass(frozen=True)
class CallEnd:
    """The call is whole, or stops in the middle."""

    is_complete: bool


CallPart = CallName | CallArguments | CallEnd


@dataclass(frozen=True)
class BlockStep:
    """What a piece of a block has settled."""

    settled: int  # characters that are known to be part of calls now; before the first name none is
    parts: tuple[CallPart, ...] = ()
    is_over: bool = False  # the block takes no more
    rest: str = ""  # of an ended block: characters that are not part of it, in front of what comes next
    is_closed: bool = False  # of an ended block: its closing marker came


class CallBlock(Protocol):
    """Reads one block, from its opening marker on. Never raises, whatever it is fed."""

    def feed(self, text: str) -> BlockStep:
        """The next piece, of which the first is the opening marker. `settled` plus `rest` never passes what was fed."""

    def finish(self) -> BlockStep:
        """The reply ends here. `rest` is what never became a call."""


class Dialect(Protocol):
    """One way of writing calls."""

    @property
    def name(self) -> str:
        """As settings name it."""

    @property
    def opening(self) -> str:
        """The marker in front of a block."""

    @property
    def closing(self) -> str:
        """The marker behind it; "" where there is none."""

    @property
    def bare_openings(self) -> tuple[str, ...]:
        """With which a block may begin whose opening marker the model left out."""

    @property
    def first_openings(self) -> tuple[str, ...]:
        """The same, only in front of all other text."""

    def block(self, tools: Sequence[Tool]) -> CallBlock:
        """A reader of one block; the tools tell the types of arguments where the dialect does not write them."""

    def call_rules(self, tool: Tool, name: str) -> list[str]:
        """A Lark grammar of one call between its block's markers: lines of which the first is the rule `name`."""
