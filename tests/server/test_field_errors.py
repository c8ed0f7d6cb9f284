"""Fields of the wrong type are named as the API calls them, with what would work.

Through HTTP: strata.server.field_errors.
"""

from typing import Any

import pytest

from tests.server.running import running

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "param", "sentence"),
    [
        ("/v1/chat/completions", CHAT | {"stop": 3}, "stop", "stop is 3; it must be a text or a list"),
        ("/v1/chat/completions", CHAT | {"stop": ["a", 3]}, "stop.1", "stop.1 is 3; it must be a text"),
        ("/v1/chat/completions", CHAT | {"tool_choice": 5}, "tool_choice", "tool_choice is 5; it must be a text or an"),
        ("/v1/chat/completions", CHAT | {"n": 1e308}, "n", "n is 1e+308; it must be a whole number"),
        ("/v1/chat/completions", {}, "messages", "messages is missing"),
        ("/v1/chat/completions", [], None, "the body is a list; it must be an object"),
        ("/v1/completions", {"prompt": 4}, "prompt", "prompt is 4; it must be a text or a list"),
    ],
)
def test_one_sentence_a_field(path: str, body: Any, param: str | None, sentence: str) -> None:
    with running() as server:
        status, _, answer = server.request("POST", path, body)
        assert (status, answer["error"]["param"]) == (400, param)
        assert answer["error"]["message"].startswith(sentence)


def test_null_is_no_body() -> None:
    with running() as server:
        status, _, answer = server.request("POST", "/v1/chat/completions", b"null")
        assert status == 400 and answer["error"]["message"].startswith("the body is ")
