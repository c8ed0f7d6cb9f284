"""A conversation as a caller states it, checked: who speaks, and that what is said is text.

Knows roles and contents; a message's other fields (`tool_calls`, `reasoning_content` ...) pass through as they are, for
the chat template.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from strata.errors import RequestError
from strata.types import Message

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""The roles that work, and what templates call them."""


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Every message, an object or a `Message`, with a role that templates know and a content of one text.

    Raises RequestError naming the message, its field, what stands there and what would work.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise RequestError(f"messages is {_in_words(messages)}; it must be a list of messages with role and content")
    checked = [_checked(message, f"messages[{index}]") for index, message in enumerate(messages)]
    if not checked:
        raise RequestError("messages is empty: give at least one")
    return checked


def _checked(message: Any, place: str) -> dict[str, Any]:
    if isinstance(message, Message):
        message = {"role": message.role, "content": message.content}
    if not isinstance(message, Mapping):
        raise RequestError(f"{place} is {_in_words(message)}; it must be an object with role and content")
    given = message.get("role")
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise RequestError(f"{place}.role is {given!r}; {', '.join(ROLES)} work")
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        return dict(message) | {"content": ""}  # a turn of calls alone
    return dict(message) | {"role": role, "content": text_of_content(content, f"{place}.content")}


def text_of_content(content: Any, place: str) -> str:
    """The text of a content: a string, or parts of text joined by line ends. Raises RequestError for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(
            f'{place} is {_in_words(content)}; it must be text, or a list of {{"type": "text", "text": ..}}'
        )
    return "\n".join(_text_of_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _text_of_part(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(f'{place} is {_in_words(part)}; a part is text or {{"type": "text", "text": ..}}')
    if part.get("type") != "text":
        raise RequestError(f"{place} is of type {part.get('type')!r}; only parts of type 'text' can be read")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{place}.text is {_in_words(part.get('text'))}; it must be text")
    return str(part["text"])


def _in_words(value: Any) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"
