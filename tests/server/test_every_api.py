"""What holds for every API alike: prompts that are too long, templates that are stopped, calls that are cut off.

Through HTTP: strata.server.text_side, strata.server.replies, strata.server.routes.openai_completions.
"""

import json
from typing import Any

import pytest

from strata.text.chat_template import TemplateLostError, TemplateTimeError
from tests.server.fake_engine import Reply, Script
from tests.server.running import Running, running

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"word": "tea"}}\n</tool_call>'


def said(text: str, **how: Any) -> Script:
    return Script(lambda request: Reply(text, **how))


def ask(server: Running, **fields: Any) -> Any:
    return server.post(PATH, {"messages": HI} | fields)


def refused(server: Running, **fields: Any) -> Any:
    status, _, answer = server.request("POST", PATH, {"messages": HI} | fields)
    assert status == 400, answer
    return answer["error"]


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("encoded")

    with running(Script(context=100)) as server:
        assert server.parts.text is not None
        monkeypatch.setattr(server.parts.text.tokenizer, "_encode", never)
        error = refused(server, messages=[{"role": "user", "content": "word " * 20_000}])
        assert error["code"] == "context_length_exceeded" and "at least 6,2" in error["message"]
        status, _, answer = server.request("POST", "/v1/completions", {"prompt": "word " * 20_000})
        assert (status, answer["error"]["param"]) == (400, "prompt")


def test_a_conversation_over_the_templates_limits_is_told_without_a_path() -> None:
    with running() as server:
        error = refused(server, messages=[{"role": "user", "content": "word " * 1_000_000}])
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert "4,194,304 characters" in error["message"] and "tokenizer.json" not in error["message"]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [(TemplateTimeError("/a/path: late"), 400, "template_limit"), (TemplateLostError("/a/path: ended"), 503, None)],
)
def test_a_template_that_was_stopped_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, status: int, code: str | None
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise failure

    with running() as server:
        assert server.parts.text is not None and server.parts.text.tokenizer.chat_template is not None
        monkeypatch.setattr(server.parts.text.tokenizer.chat_template, "render", stopped)
        found, _, answer = server.request("POST", PATH, {"messages": [{"role": "user", "content": "hi"}]})
        assert (found, answer["error"]["code"]) == (status, code)
        assert "/a/path" not in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "limit", "more"),
    [
        ("/v1/chat/completions", "max_tokens", {}),
        ("/v1/responses", "max_output_tokens", {"input": "hi"}),
        ("/v1/messages", "max_tokens", {}),
    ],
)
@pytest.mark.parametrize("text", ['<tool_call>\n{"name":', '<tool_call>\n{"name": "look", "arguments": {"wo'])
def test_every_api_leaves_out_a_call_that_is_cut_off(path: str, limit: str, more: Any, text: str) -> None:
    function = LOOK["function"]
    tools = {
        "/v1/chat/completions": LOOK,
        "/v1/responses": {"type": "function"} | function,
        "/v1/messages": {"name": "look", "input_schema": {"type": "object"}},
    }
    with running(said(CALL + "\n" + text, ends_itself=False)) as server:
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tools[path]], limit: 400} | more
        answer = server.post(path, body)
        whole = json.dumps(answer["choices"] if "choices" in answer else answer.get("output") or answer["content"])
        assert whole.count('"look"') == 1 and "tool_call>" not in whole
        assert len(answer["warnings"]) == 1 and "cut off" in answer["warnings"][0]


def test_a_stop_string_inside_a_call_is_none_and_no_markup_becomes_text() -> None:
    with running(said(CALL)) as server:
        choice = ask(server, tools=[LOOK], tool_choice="required", stop=["look"], max_tokens=200)["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "look"
