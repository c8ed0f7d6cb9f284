"""What a reply is made of once its text has been understood: reasoning, content and calls of tools, as they come.

Values only; who finds them in the text is `reply.py`, how a client is told is the server's matter.
"""

from dataclasses import dataclass

from strata.sampling.draw import Draw


@dataclass(frozen=True)
class ReasoningText:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class ContentText:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class ToolCallBegun:
    """A call of a tool begins; its name is whole."""

    index: int  # numbers the calls of a reply from 0
    call_id: str  # "call_" and 24 random characters
    name: str


@dataclass(frozen=True)
class ToolArguments:
    """A piece of a call's arguments: the pieces of one call together are one JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallEnded:
    """A call is complete, or was cut off where the reply ended."""

    index: int
    is_complete: bool
    arguments: str  # all of them


@dataclass(frozen=True)
class UnfinishedCall:
    """The reply ended where a call had begun but its name was not whole yet: nothing can be done with it."""

    text: str


@dataclass(frozen=True)
class TokenShown:
    """Which part of the reply a token belongs to; comes for every token when log-probabilities are asked for."""

    draw: Draw
    text: str  # what the token alone stands for
    is_content: bool  # False: reasoning, markers, calls


@dataclass(frozen=True)
class StopFound:
    """A stop string came: the reply ends in front of it and takes no more tokens."""

    stop: str
    kept_tokens: int  # tokens of the reply up to and with the one that completed it


ReplyEvent = (
    ReasoningText
    | ContentText
    | ToolCallBegun
    | ToolArguments
    | ToolCallEnded
    | UnfinishedCall
    | TokenShown
    | StopFound
)
