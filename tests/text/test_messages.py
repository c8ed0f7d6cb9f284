"""A conversation is checked before a template sees it: what is not a role or not text is refused by its place."""

from typing import Any

import pytest

from strata.errors import RequestError
from strata.text.messages import ROLES, checked_messages


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "first"}, {"role": "user", "content": content}]


@pytest.mark.parametrize("role", ROLES)
def test_every_role_is_what_templates_call_it(role: str) -> None:
    (message,) = checked_messages([{"role": role, "content": "x"}])
    assert message == {"role": "system" if role == "developer" else role, "content": "x"}


def test_parts_of_text_are_joined_and_other_fields_pass_through() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    given = {"role": "assistant", "content": parts, "reasoning_content": "why", "name": "n"}
    assert checked_messages((given,)) == [given | {"content": "one\ntwo"}]
    assert given["content"] is parts  # the caller's stays as it is


def test_a_turn_of_calls_alone_needs_no_content() -> None:
    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    (message,) = checked_messages([{"role": "assistant", "content": None, "tool_calls": calls}])
    assert message == {"role": "assistant", "content": "", "tool_calls": calls}
    with pytest.raises(RequestError, match=r"messages\[0\]\.content is missing"):
        checked_messages([{"role": "user", "tool_calls": calls}])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (5, r"messages\[1\]\.content is of type int; it must be text, or a list of"),
        (None, r"messages\[1\]\.content is missing; it must be text"),
        ({"a": 1}, r"messages\[1\]\.content is of type dict"),
        (b"x", r"messages\[1\]\.content is of type bytes"),
        (
            [{"type": "image_url", "image_url": {}}],
            r"messages\[1\]\.content\[0\] is of type 'image_url'; only .*'text'",
        ),
        (["x", 7], r"messages\[1\]\.content\[1\] is of type int"),
        ([{"type": "text"}], r"messages\[1\]\.content\[0\]\.text is missing; it must be text"),
    ],
)
def test_a_content_that_is_no_text_is_named(content: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        checked_messages(user(content))


@pytest.mark.parametrize("role", ["x", "", None, 5, ["user"]])
def test_a_role_that_is_none_is_told_with_those_that_work(role: Any) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\]\.role is .*; system, developer, user, assistant, tool work"):
        checked_messages([{"role": role, "content": "x"}])


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", "messages is of type str; it must be a list"),
        ({"role": "user", "content": "x"}, "messages is of type dict; it must be a list"),
        (None, "messages is missing; it must be a list"),
        ([], "messages is empty"),
        (["hello"], r"messages\[0\] is of type str; it must be an object"),
    ],
)
def test_what_is_no_list_of_messages_is_told(messages: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        checked_messages(messages)
