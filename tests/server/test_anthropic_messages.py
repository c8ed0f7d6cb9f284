"""Anthropic's API over a fake engine: the whole message, the order of a stream's events, blocks in, errors.

Through HTTP: strata.server.wire.anthropic_messages, strata.server.wire.anthropic_replies.
"""

import json
from typing import Any

import pytest

from strata.sampling.grammar_spec import GrammarKind
from tests.server.fake_engine import Reply, Script, tokenizer
from tests.server.running import Running, running

PATH = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
LOOK = {"name": "look", "description": "Look up.", "input_schema": {"type": "object", "properties": {"word": {}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"word": "tea"}}\n</tool_call>'
FULL = f"<think>\nI wonder.\n</think>\n\nI look.\n{CALL}"


def ask(server: Running, **fields: Any) -> dict[str, Any]:
    return server.post(PATH, {"messages": HI, "max_tokens": 64} | fields)


def refused(server: Running, **fields: Any) -> dict[str, Any]:
    status, _, answer = server.request("POST", PATH, {"messages": HI, "max_tokens": 64} | fields)
    assert status == 400, answer
    assert answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
    assert answer["request_id"].startswith("req_")
    return answer["error"]


def said(text: str, **how: Any) -> Script:
    return Script(lambda request: Reply(text, **how))


def prompt_of(server: Running) -> str:
    last = server.engine.requests[max(server.engine.requests)]
    return tokenizer().decode(last.prompt, show_special=True)


def test_a_message_has_the_apis_shape() -> None:
    with running(said("Hello there.", cached=4)) as server:
        message = ask(server, model="claude")
        assert (message["type"], message["role"], message["id"][:4]) == ("message", "assistant", "msg_")
        assert message["content"] == [{"type": "text", "text": "Hello there.", "citations": None}]
        assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
        usage = message["usage"]
        assert usage["cache_read_input_tokens"] == 4
        assert usage["input_tokens"] + 4 == len(server.engine.requests[1].prompt)


def test_reasoning_text_and_calls_are_blocks_in_order() -> None:
    with running(said(FULL)) as server:
        message = ask(server, tools=[LOOK])
        thinking, text, call = message["content"]
        assert thinking == {"type": "thinking", "thinking": "I wonder.", "signature": "strata"}
        assert text["text"] == "I look."
        assert (call["name"], call["input"], call["id"][:6]) == ("look", {"word": "tea"}, "toolu_")
        assert message["stop_reason"] == "tool_use"
        assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0


def test_a_streams_events_come_in_their_order() -> None:
    with running(said(FULL)) as server:
        events = server.events(PATH, {"messages": HI, "max_tokens": 64, "tools": [LOOK], "stream": True})
        assert all(data["type"] == name for name, data in events)
        kinds = [name for name, _ in events if name != "ping"]
        assert (kinds[0], kinds[-2], kinds[-1]) == ("message_start", "message_delta", "message_stop")
        assert events[0][1]["message"]["usage"]["input_tokens"] > 0
        is_open = None
        blocks: list[dict[str, Any]] = []
        for name, data in events:
            if name == "content_block_start":
                assert is_open is None and data["index"] == len(blocks)
                is_open = data["index"]
                blocks.append(data["content_block"] | {"text": "", "signed": False})
            elif name == "content_block_delta":
                assert data["index"] == is_open
                delta = data["delta"]
                blocks[-1]["text"] += delta.get("text", delta.get("thinking", delta.get("partial_json", "")))
                blocks[-1]["signed"] = delta["type"] == "signature_delta"
            elif name == "content_block_stop":
                assert data["index"] == is_open
                is_open = None
        assert is_open is None
        assert [(block["type"], block["signed"]) for block in blocks] == [
            ("thinking", True), ("text", False), ("tool_use", False),
        ]  # fmt: skip
        assert [block["text"] for block in blocks[:2]] == ["I wonder.", "I look."]
        assert json.loads(blocks[2]["text"]) == {"word": "tea"}
        assert events[-2][1]["delta"]["stop_reason"] == "tool_use"
        assert events[-2][1]["usage"]["output_tokens"] > 0


@pytest.mark.parametrize(
    ("reply", "fields", "reason", "stop"),
    [
        (Reply("one two three"), {"stop_sequences": [" two"]}, "stop_sequence", " two"),
        (Reply("one two three four five six"), {"max_tokens": 2}, "max_tokens", None),
        (Reply("word " * 1000, ends_itself=False), {"max_tokens": 1000}, "model_context_window_exceeded", None),
    ],
)
def test_why_a_message_ended(reply: Reply, fields: Any, reason: str, stop: str | None) -> None:
    with running(Script(lambda request: reply)) as server:
        message = ask(server, **fields)
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)


def test_a_call_that_is_cut_off_is_not_handed_to_anybody_to_run() -> None:
    with running(said(CALL, ends_itself=False)) as server:
        message = ask(server, tools=[LOOK], max_tokens=14)
        assert message["stop_reason"] == "max_tokens"
        assert [block["type"] for block in message["content"]] == ["text"]
        assert message["warnings"] == ["a call of 'look' was cut off: it cannot be run"]


def test_blocks_of_earlier_turns_reach_the_template() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Look up tea.", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I wonder.", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"word": "tea"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a drink"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such word", "is_error": True},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a page"}},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    with running() as server:
        ask(server, messages=turns, tools=[LOOK], system=[{"type": "text", "text": "Be kind."}])
        prompt = prompt_of(server)
        order = [
            "Be kind.",
            "Look up tea.",
            "I wonder.",
            "I look.",
            '{"word": "tea"}',
            "a drink",
            "Error: no such word",
        ]
        order += ["a page\nGo on."]
        positions = [prompt.index(part) for part in order]
        assert positions == sorted(positions)


def test_the_changing_billing_line_does_not_reach_the_prompt() -> None:
    with running() as server:
        prompts = []
        for number in (1, 2):
            billing = f"x-anthropic-billing-header: cc_version=2.1; cch={number};"
            for system in (
                [{"type": "text", "text": billing}, {"type": "text", "text": "Be kind."}],
                [{"type": "text", "text": f"{billing}\nBe kind."}],
                f"{billing}\n\nBe kind.",
            ):
                ask(server, system=system)
                prompts.append(prompt_of(server))
        assert len(set(prompts)) == 1
        assert "Be kind." in prompts[0] and "billing" not in prompts[0]


def test_only_a_line_in_front_is_taken_out_of_the_system_prompt() -> None:
    with running() as server:
        ask(server, system="Be kind.\nx-anthropic-billing-header: is a header.")
        assert "Be kind.\nx-anthropic-billing-header: is a header." in prompt_of(server)
        ask(server, system="x-anthropic-billing-header: nothing else")
        alone = prompt_of(server)
        ask(server)
        assert alone == prompt_of(server)


def test_a_last_turn_of_the_assistant_is_continued() -> None:
    with running() as server:
        ask(server, messages=[*HI, {"role": "assistant", "content": "I think"}])
        assert prompt_of(server).endswith("I think")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tools": [LOOK], "tool_choice": {"type": "any"}}, GrammarKind.LARK),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "look"}}, GrammarKind.LARK),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, GrammarKind.JSON_SCHEMA),
        ({"tools": [LOOK], "tool_choice": {"type": "auto"}}, None),
        ({"tools": [LOOK], "tool_choice": {"type": "none"}}, None),
    ],
)
def test_what_the_reply_must_be_reaches_the_engine(fields: Any, kind: GrammarKind | None) -> None:
    with running() as server:
        ask(server, **fields)
        grammar = server.engine.requests[1].grammar
        assert (grammar.kind if grammar is not None else None) is kind


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "is empty"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "1 or larger"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "'robot'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "text only"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"tools": [{"name": "look"}]}, "input_schema"),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"thinking": {"type": "perhaps"}}, "'perhaps'"),
        ({"output_config": {"format": {"type": "xml"}}}, "json_schema"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, "context 512"),
    ],
)
def test_what_cannot_be_done_is_refused_in_the_apis_shape(fields: Any, words: str) -> None:
    with running() as server:
        assert words in refused(server, **fields)["message"]


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"type": "function", "function": {"name": "look"}}, "tools[0] is a tool as OpenAI's API has it"),
        ({"name": "a\nb", "input_schema": {}}, "tools[0].name is 'a\\nb'; it must hold printable characters only"),
        ({"name": "a" * 129, "input_schema": {}}, "a name of at most 128 characters"),
    ],
)
def test_a_tool_that_cannot_be_used_is_told_why(tool: Any, words: str) -> None:
    with running() as server:
        body = {"messages": HI, "max_tokens": 8, "tools": [tool]}
        status, _, answer = server.request("POST", PATH, body)
        assert status == 400 and words in answer["error"]["message"]
        named = {"type": "function", "name": "look", "input_schema": {"type": "object"}}
        assert server.request("POST", PATH, body | {"tools": [named]})[0] == 200


def test_tools_of_a_provider_are_left_out_and_the_message_says_so() -> None:
    with running() as server:
        message = ask(server, tools=[LOOK, {"type": "web_search_20250305", "name": "web_search"}])
        assert "web_search_20250305" in message["warnings"][0]


def test_a_thinking_budget_is_not_held_to_and_the_message_says_so() -> None:
    with running() as server:
        message = ask(server, thinking={"type": "enabled", "budget_tokens": 1024})
        assert message["warnings"] == ["thinking.budget_tokens is not held to: this server has no thinking budget"]
        assert "warnings" not in ask(server, thinking={"type": "adaptive"})


def test_tokens_are_counted_with_template_system_and_tools() -> None:
    with running() as server:
        body = {"messages": HI, "system": "Be kind.", "tools": [LOOK]}
        counted = server.post(PATH + "/count_tokens?beta=true", body, {"anthropic-beta": "x"})
        ask(server, **body)
        assert counted == {"input_tokens": len(server.engine.requests[1].prompt)}


def test_what_the_context_cannot_hold_is_counted_all_the_same() -> None:
    with running() as server:
        long = {"messages": [{"role": "user", "content": "word " * 20_000}]}
        assert server.post(f"{PATH}/count_tokens", long)["input_tokens"] > 20_000
        assert server.request("POST", PATH, long | {"max_tokens": 8})[0] == 400


def test_other_failures_have_the_apis_shape_too() -> None:
    with running(api_key="k") as server:
        status, headers, answer = server.request("POST", PATH, {})
        assert (status, answer["error"]["type"]) == (401, "authentication_error")
        assert answer["request_id"] == headers["request-id"]
        status, _, answer = server.request("GET", PATH, None, {"x-api-key": "k"})
        assert (status, answer["type"]) == (405, "error")
