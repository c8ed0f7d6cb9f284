"""The Responses API over a fake engine: items in and out, numbered events, what a stateless server refuses.

Through HTTP: strata.server.wire.responses_input, strata.server.wire.responses_replies, strata.server.wire.logprobs.
"""

import json
from typing import Any

import pytest

from strata.sampling.grammar_spec import GrammarKind
from tests.server.fake_engine import Reply, Script, tokenizer
from tests.server.running import Running, running

PATH = "/v1/responses"
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"word": {}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"word": "tea"}}\n</tool_call>'
FULL = f"<think>\nI wonder.\n</think>\n\nI look.\n{CALL}"
NEVER_NULL = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "tool_choice", "truncation",
    "background", "service_tier", "tools", "parallel_tool_calls", "metadata", "text", "output", "usage",
)  # fmt: skip


def ask(server: Running, **fields: Any) -> dict[str, Any]:
    return server.post(PATH, {"input": "hi"} | fields)


def said(text: str, **how: Any) -> Script:
    return Script(lambda request: Reply(text, **how))


def prompt_of(server: Running) -> str:
    last = server.engine.requests[max(server.engine.requests)]
    return tokenizer().decode(last.prompt, show_special=True)


def test_a_response_has_the_apis_shape() -> None:
    with running(said("Hello there.", cached=4)) as server:
        response = ask(server)
        assert (response["object"], response["status"], response["id"][:5]) == ("response", "completed", "resp_")
        assert [name for name in NEVER_NULL if response[name] is None] == []
        message = response["output"][0]
        assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
        assert message["content"][0] == {
            "type": "output_text", "text": "Hello there.", "annotations": [], "logprobs": [],
        }  # fmt: skip
        assert response["usage"]["input_tokens_details"] == {"cached_tokens": 4}


def test_events_are_numbered_and_build_the_response_that_ends_them() -> None:
    with running(said(FULL)) as server:
        events = server.events(PATH, {"input": "hi", "tools": [LOOK], "stream": True})
        assert all(data["type"] == name for name, data in events)
        assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
        kinds = [name for name, _ in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        final = events[-1][1]["response"]
        done = [data["item"] for name, data in events if name == "response.output_item.done"]
        assert final["output"] == done
        assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
        for kind, item, field in (
            ("response.reasoning_text.delta", done[0], done[0]["content"][0]["text"]),
            ("response.output_text.delta", done[1], done[1]["content"][0]["text"]),
            ("response.function_call_arguments.delta", done[2], done[2]["arguments"]),
        ):
            pieces = [data for name, data in events if name == kind]
            assert {data["item_id"] for data in pieces} == {item["id"]}
            assert "".join(data["delta"] for data in pieces) == field
        assert json.loads(done[2]["arguments"]) == {"word": "tea"}
        order = [kinds.index(kind) for kind in (
            "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
            "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
        )]  # fmt: skip
        assert order == sorted(order)


def test_stream_and_whole_answer_say_the_same() -> None:
    def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]

    with running(said(FULL)) as server:
        fields = {"tools": [LOOK], "top_logprobs": 1}
        whole = ask(server, **fields)
        final = server.events(PATH, {"input": "hi", "stream": True} | fields)[-1][1]["response"]
        assert without_ids(final["output"]) == without_ids(whole["output"])
        assert final["usage"] == whole["usage"]
        assert whole["output"][1]["content"][0]["logprobs"]


def test_what_is_cut_off_is_incomplete() -> None:
    with running(said("one two three four")) as server:
        response = ask(server, max_output_tokens=2)
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        events = server.events(PATH, {"input": "hi", "max_output_tokens": 2, "stream": True})
        assert events[-1][0] == "response.incomplete"


def test_a_call_that_is_cut_off_is_not_in_the_response() -> None:
    with running(said(CALL, ends_itself=False)) as server:
        response = ask(server, tools=[LOOK], max_output_tokens=14)
        assert response["status"] == "incomplete"
        assert [item["type"] for item in response["output"]] == ["message"]
        assert response["warnings"] == ["a call of 'look' was cut off: it cannot be run"]


def test_items_of_earlier_turns_become_one_message_a_turn() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Use tools."}]},
        {"role": "user", "content": "Look up tea."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I wonder."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"word": "tea"}'},
        {"type": "function_call_output", "call_id": "c", "output": "a drink"},
        {"type": "web_search_call", "id": "w"},
    ]
    with running() as server:
        ask(server, instructions="Be kind.", input=items, tools=[LOOK])
        prompt = prompt_of(server)
        order = ["Be kind.\n\nUse tools.", "Look up tea.", "I wonder.", "I look.", '{"word": "tea"}', "a drink"]
        assert [prompt.count(part) for part in order] == [1] * len(order)
        assert prompt.count("<|im_start|>assistant") == 2  # the earlier turn and the one to come


@pytest.mark.parametrize("given", ["", []])
def test_a_probe_with_nothing_in_it_is_answered(given: Any) -> None:
    with running() as server:
        assert ask(server, input=given, max_output_tokens=1)["status"] == "incomplete"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "input is missing"),
        ({"input": None}, "input", "input is missing"),
        ({"input": [{"type": "web_search_call"}]}, "input", "input holds no message"),
        ({"input": "a", "include": ["bogus"]}, "include", "include holds 'bogus'"),
        ({"input": "a", "reasoning": {"effort": "bogus"}}, "reasoning.effort", "reasoning.effort is 'bogus'; none,"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0; it must be 1 or larger"),
        ({"input": "word " * 700}, "input", "this server's context 512"),
    ],
)
def test_a_refusal_names_the_field_as_this_api_calls_it(body: Any, param: str, words: str) -> None:
    with running() as server:
        status, _, answer = server.request("POST", PATH, body)
        assert (status, answer["error"]["param"]) == (400, param)
        assert words in answer["error"]["message"]


def test_items_that_have_no_place_in_a_prompt_are_left_out_and_the_response_says_so() -> None:
    with running() as server:
        items = [{"role": "user", "content": "hi"}, {"type": "web_search_call"}]
        assert ask(server, input=items)["warnings"] == [
            "input[1] of type 'web_search_call' is left out: this server cannot use it"
        ]


def test_namespaces_are_opened_and_unknown_tools_left_out() -> None:
    tools = [
        {"type": "namespace", "name": "words", "tools": [LOOK]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": ""}},
        {"type": "local_shell"},
        {"type": "web_search"},
    ]
    with running(said(CALL)) as server:
        response = ask(server, tools=tools)
        assert response["output"][0]["name"] == "look"
        assert len(response["warnings"]) == 3


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}},
            GrammarKind.JSON_SCHEMA,
        ),
        ({"text": {"format": {"type": "json_object"}}}, GrammarKind.JSON_OBJECT),
        ({"text": {"format": {"type": "text"}}}, None),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "look"}}, GrammarKind.LARK),
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
        ({"previous_response_id": "resp_1"}, "stateless"),
        ({"conversation": "conv_1"}, "stateless"),
        ({"background": True}, "stateless"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "stateless"),
        ({"input": [{"role": "robot", "content": "x"}]}, "'robot'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "text only"),
        ({"input": [{"type": "function_call"}]}, "input[0].name"),
        ({"max_output_tokens": 0}, "1 or larger"),
        ({"top_logprobs": 21}, "0 to 20"),
        ({"input": "word " * 600}, "context 512"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: Any, words: str) -> None:
    with running() as server:
        status, _, answer = server.request("POST", PATH, {"input": "hi"} | fields)
        assert status == 400
        assert words in answer["error"]["message"]


def test_nothing_is_stored_and_prompts_can_be_counted() -> None:
    with running() as server:
        status, _, answer = server.request("GET", PATH + "/resp_1")
        assert status == 404 and "stateless" in answer["error"]["message"]
        counted = server.post(PATH + "/input_tokens", {"input": "hi"})["input_tokens"]
        ask(server)
        assert counted == len(server.engine.requests[1].prompt)
