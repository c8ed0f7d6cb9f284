"""Chat completions over a fake engine: shapes, fields, refusals, tools, reasoning and their streams.

Through HTTP: strata.server.wire.openai_messages, strata.server.wire.openai_tools, strata.server.grammar_fields,
strata.server.responding.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from strata.sampling.grammar_spec import GrammarKind
from tests.server.fake_engine import Reply, Script, tokenizer
from tests.server.running import Running, running

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
CALL = '<tool_call>\n{"name": "look", "arguments": {"word": "tea"}}\n</tool_call>'


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """A server for tests that leave nothing behind."""
    with running() as server:
        yield server


def ask(server: Running, **fields: Any) -> dict[str, Any]:
    return server.post(PATH, {"messages": HI} | fields)


def refused(server: Running, **fields: Any) -> dict[str, Any]:
    status, _, answer = server.request("POST", PATH, {"messages": HI} | fields)
    assert status == 400, answer
    assert answer["error"]["type"] == "invalid_request_error"
    return answer["error"]


def said(text: str, **how: Any) -> Script:
    return Script(lambda request: Reply(text, **how))


def deltas(server: Running, **fields: Any) -> list[dict[str, Any]]:
    events = server.events(PATH, {"messages": HI, "stream": True} | fields)
    assert events[-1] == (None, "[DONE]")
    return [data for _, data in events[:-1]]


def test_an_answer_has_the_apis_shape() -> None:
    with running(said("Hello there.", cached=4)) as server:
        answer = ask(server, model="anything")
        assert answer["id"].startswith("chatcmpl-")
        assert answer["object"] == "chat.completion"
        assert answer["model"] == "pocket"
        choice = answer["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "Hello there.", "refusal": None}
        assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
        assert answer["timings"]["cache_n"] == 4


def test_a_stream_says_the_role_first_then_text_then_why_it_ended_then_usage() -> None:
    with running(said("Hello there.")) as server:
        chunks = deltas(server, stream_options={"include_usage": True})
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
        assert text == "Hello there."
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-1] == "stop"
        assert {str(chunk["usage"]) for chunk in chunks[:-1]} == {"None"}
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 4


def test_stream_and_whole_answer_say_the_same() -> None:
    text = f"<think>\nI wonder.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    with running(said(text)) as server:
        whole = ask(server, tools=[LOOK])["choices"][0]
        content = reasoning = ""
        calls: dict[int, dict[str, str]] = {}
        for chunk in deltas(server, tools=[LOOK]):
            delta = chunk["choices"][0]["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning") or ""
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", ()):
                held = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                held["name"] += call["function"].get("name", "")
                held["arguments"] += call["function"]["arguments"]
        message = whole["message"]
        assert (content, reasoning) == (message["content"], message["reasoning"]) == ("I look.", "I wonder.")
        assert message["reasoning_content"] == message["reasoning"]
        assert [call["function"] for call in message["tool_calls"]] == list(calls.values())
        assert json.loads(calls[1]["arguments"]) == {"word": "tea"}
        assert whole["finish_reason"] == chunk["choices"][0]["finish_reason"] == "tool_calls"


def test_reasoning_is_counted_and_can_be_left_out() -> None:
    with running(said("<think>\nI wonder.\n</think>\n\nYes.")) as server:
        answer = ask(server)
        usage = answer["usage"]
        assert 3 <= usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
        message = ask(server, include_reasoning=False)["choices"][0]["message"]
        assert "reasoning" not in message and message["content"] == "Yes."


def test_several_choices_are_numbered_whole_and_streamed() -> None:
    with running(Script(lambda request: Reply(f"Number {request.choice}."))) as server:
        answer = ask(server, n=3)
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["Number 0.", "Number 1.", "Number 2."]
        texts = ["", "", ""]
        for chunk in deltas(server, n=3):
            choice = chunk["choices"][0]
            texts[choice["index"]] += choice["delta"].get("content", "")
        assert texts == ["Number 0.", "Number 1.", "Number 2."]
        assert answer["usage"]["prompt_tokens"] == 9


def test_a_stop_string_ends_the_reply_in_front_of_it_and_the_engine_hears_what_was_kept() -> None:
    with running(said("one two three four", seconds_a_token=0.005)) as server:
        answer = ask(server, stop=[" three"])
        choice = answer["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
            "one two", "stop", " three",
        )  # fmt: skip
        server.until(lambda: bool(server.engine.ended))
        cancel = server.engine.received[-1]
        assert cancel.keep_tokens == answer["usage"]["completion_tokens"]


def test_logprobs_name_token_bytes_and_alternatives() -> None:
    with running(said("Hello there.")) as server:
        content = ask(server, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in content) == "Hello there."
        assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
        assert {len(entry["top_logprobs"]) for entry in content} == {2}
        streamed = [chunk["choices"][0]["logprobs"] for chunk in deltas(server, logprobs=True)]
        assert "".join(e["token"] for held in streamed if held for e in held["content"]) == "Hello there."


def test_every_sampling_field_reaches_the_engine() -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 3,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "logit_bias": {"5": 1.5}, "stop_token_ids": [9],
        "min_tokens": 4,
    }  # fmt: skip
    with running() as server:
        ask(server, max_completion_tokens=6, ignore_eos=True, **fields)
        request = server.engine.requests[1]
        held = {name: getattr(request.options, name) for name in fields}
        assert held == fields | {"logit_bias": {5: 1.5}, "stop_token_ids": (9,)}
        assert request.options.max_tokens == 6
        assert request.stop_token_ids == {9}


def test_what_nothing_is_said_about_is_as_the_api_says() -> None:
    with running() as server:
        ask(server)
        options = server.engine.requests[1].options
        assert (options.temperature, options.top_p, options.max_tokens) == (1.0, 1.0, None)
        assert options.seed is not None
        assert server.engine.requests[1].stop_token_ids == server.parts.service.facts.end_of_text_ids


def test_the_models_recommended_sampling_is_used_where_nothing_is_said() -> None:
    with running(Script(sampling={"temperature": 0.6, "top_k": 20, "top_p": 0.95})) as server:
        ask(server)
        ask(server, temperature=0.1)
        server.post("/v1/completions", {"prompt": "hi"})
        server.post("/v1/messages", {"messages": HI, "max_tokens": 5})
        response = server.post("/v1/responses", {"input": "hi"})
        requests = [server.engine.requests[number].options for number in range(1, 6)]
        assert [options.temperature for options in requests] == [0.6, 0.1, 0.6, 0.6, 0.6]
        assert {(options.top_k, options.top_p) for options in requests} == {(20, 0.95)}
        assert (response["temperature"], response["top_p"]) == (0.6, 0.95)
        assert [options.max_tokens for options in requests] == [None, None, 16, 5, None]
        shown = server.request("GET", "/props")[2]["default_generation_settings"]["params"]
        assert shown == {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "n_predict": -1}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "is empty"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role", "'robot'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]", "text only"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls[0]", "name"),
        ({"n": 0}, "n", "from 1"),
        ({"n": 1000}, "n", "from 1"),
        ({"temperature": -1}, "temperature", "from 0"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"max_tokens": 0}, "max_tokens", "1 or larger"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "one option"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repetition_penalty", "one option"),
        ({"top_logprobs": 21}, "top_logprobs", "0 to 20"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", "set logprobs"),
        ({"logit_bias": {"foo": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias", "0 to 8191"),
        ({"stop": ""}, "stop", "at least one character"),
        ({"seed": 1 << 70}, "seed", "64 bits"),
        ({"min_tokens": -1}, "min_tokens", "0 or larger"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "max_tokens, which is 4"),
        ({"thinking_token_budget": 5}, "thinking_token_budget", "no such option"),
        ({"modalities": ["text", "audio"]}, "modalities", "text only"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, None, "a JSON schema"),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= x"}, "response_format", "one of them"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name", "two tools"),
        ({"tools": [LOOK], "tool_choice": "perhaps"}, "tool_choice", "'perhaps'"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "look"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].name", "name"),
        ({"tools": [LOOK], "grammar": "root ::= x", "tool_choice": "auto"}, "tools", "do not go together"),
        ({"continue_final_message": True}, "continue_final_message", "assistant"),
        ({"chat_template_kwargs": {"messages": []}}, None, "another name"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_field(
    shared: Running, fields: Any, param: str | None, words: str
) -> None:
    before = len(shared.engine.requests)
    error = refused(shared, **fields)
    assert words in error["message"]
    assert param is None or error["param"] == param
    assert len(shared.engine.requests) == before


def test_a_prompt_over_the_context_is_refused_with_both_numbers() -> None:
    with running(Script(context=100)) as server:
        error = refused(server, messages=[{"role": "user", "content": "word " * 200}])
        assert error["code"] == "context_length_exceeded"
        assert "context 100" in error["message"] and "tokens" in error["message"]


def test_a_field_that_nobody_knows_is_ignored() -> None:
    with running() as server:
        assert ask(server, store=True, metadata={"a": "b"}, user="me", service_tier="auto", whatever=[1])["choices"]


def test_a_grammar_that_the_engine_refuses_is_a_400() -> None:
    script = said("", error="the schema cannot be compiled: oneOf", is_callers_mistake=True)
    with running(script) as server:
        for stream in (False, True):
            assert "oneOf" in refused(server, stream=stream)["message"]


def test_the_field_that_the_engine_refuses_is_named() -> None:
    with running(said("", error="min_tokens is 5 and there is a grammar", is_callers_mistake=True)) as server:
        assert refused(server, min_tokens=5)["param"] == "min_tokens"


def test_a_failure_of_the_engine_is_a_500_that_is_not_to_be_repeated() -> None:
    with running(said("", error="out of memory")) as server:
        status, headers, answer = server.request("POST", PATH, {"messages": HI})
        assert (status, headers["x-should-retry"], answer["error"]["message"]) == (500, "false", "out of memory")


def test_what_was_relaxed_is_reported() -> None:
    with running(said("{}", notices=("oneOf was read as anyOf",))) as server:
        assert ask(server)["warnings"] == ["oneOf was read as anyOf"]
        assert deltas(server)[-1]["warnings"] == ["oneOf was read as anyOf"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_OBJECT),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}},
            GrammarKind.JSON_SCHEMA,
        ),
        ({"json_schema": {"type": "null"}}, GrammarKind.JSON_SCHEMA),
        ({"grammar": 'root ::= "x"'}, GrammarKind.GBNF),
        ({"grammar": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}}, GrammarKind.LARK),
        ({"structured_outputs": {"regex": "x+"}}, GrammarKind.REGEX),
        ({"guided_choice": ["yes", "no"]}, GrammarKind.REGEX),
        ({"tools": [LOOK], "tool_choice": "required"}, GrammarKind.LARK),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "look"}}}, GrammarKind.LARK),
        ({"tools": [LOOK], "response_format": {"type": "json_object"}}, GrammarKind.LARK),
    ],
)
def test_what_the_reply_must_be_reaches_the_engine_as_a_grammar(
    shared: Running, fields: Any, kind: GrammarKind
) -> None:
    ask(shared, **fields)
    grammar = shared.engine.requests[max(shared.engine.requests)].grammar
    assert grammar is not None and grammar.kind is kind


def test_no_grammar_is_asked_for_where_anything_goes() -> None:
    with running() as server:
        ask(server, response_format={"type": "text"})
        ask(server, tools=[LOOK])
        ask(server, tools=[LOOK], tool_choice="none")
        assert {request.grammar for request in server.engine.requests.values()} == {None}


def test_tools_that_must_not_be_called_are_not_shown() -> None:
    with running(said(CALL)) as server:
        answer = ask(server, tools=[LOOK], tool_choice="none")
        assert "tool_calls" not in answer["choices"][0]["message"]
        assert "look" not in tokenizer().decode(server.engine.requests[1].prompt)


def test_one_call_is_enough_without_parallel_calls() -> None:
    with running(said(CALL + "\n" + CALL, seconds_a_token=0.002)) as server:
        choice = ask(server, tools=[LOOK], parallel_tool_calls=False)["choices"][0]
        assert len(choice["message"]["tool_calls"]) == 1
        assert choice["finish_reason"] == "tool_calls"


def test_a_call_that_is_cut_off_is_reported_as_cut_off() -> None:
    with running(said(CALL, ends_itself=False)) as server:
        choice = ask(server, tools=[LOOK], max_tokens=14)["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
        assert "tool_calls" not in choice["message"]
        last = deltas(server, tools=[LOOK], max_tokens=14)[-1]
        assert last["choices"][0]["finish_reason"] == "length"
        assert last["warnings"] == ["a call of 'look' was cut off: it cannot be run"]


def test_a_call_without_a_whole_name_leaks_into_nothing() -> None:
    with running(said('I look.\n<tool_call>\n{"na', ends_itself=False)) as server:
        answer = ask(server, tools=[LOOK])
        assert answer["choices"][0]["message"]["content"] == "I look."
        assert "cut off" in answer["warnings"][0]
        texts = [c["choices"][0]["delta"].get("content", "") for c in deltas(server, tools=[LOOK])]
        assert "".join(texts) == "I look."


def test_a_tool_is_held_to_its_schema_strictly_only_where_it_says_so() -> None:
    strict = {"type": "function", "function": LOOK["function"] | {"name": "strictly", "strict": True}}
    with running() as server:
        ask(server, tools=[LOOK, strict], tool_choice="required")
        grammar = server.engine.requests[1].grammar.source
        rules = {name: line for line in grammar.splitlines() for name in ("tool_0", "tool_1") if line.startswith(name)}
        assert '"lenient": true' in rules["tool_0"] and '"lenient": false' in rules["tool_1"]


def test_tools_of_other_kinds_are_left_out_and_the_answer_says_so() -> None:
    with running() as server:
        answer = ask(server, tools=[LOOK, {"type": "web_search"}])
        assert "tools[1] of type 'web_search' is left out" in answer["warnings"][0]


def test_a_last_message_can_be_continued() -> None:
    with running() as server:
        ask(server, messages=[*HI, {"role": "assistant", "content": "I think"}], continue_final_message=True)
        assert tokenizer().decode(server.engine.requests[1].prompt, show_special=True).endswith("I think")


def test_earlier_reasoning_and_calls_come_back_to_the_template() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"word": "tea"}'}}
    turns = [
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        *HI,
        {"role": "assistant", "reasoning": "I wonder.", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a drink"},
    ]
    with running() as server:
        ask(server, messages=turns, tools=[LOOK])
        prompt = tokenizer().decode(server.engine.requests[1].prompt, show_special=True)
        for part in ("Be kind.", "<think>\nI wonder.\n</think>", '"arguments": {"word": "tea"}', "a drink"):
            assert part in prompt


def test_token_ids_and_progress_are_given_when_asked_for() -> None:
    with running(said("Hello there.")) as server:
        answer = ask(server, return_token_ids=True)
        held = answer["choices"][0]["token_ids"]
        assert tokenizer().decode(held) == "Hello there."
        assert tuple(answer["prompt_token_ids"]) == server.engine.requests[1].prompt
        chunks = deltas(server, return_token_ids=True, return_progress=True, timings_per_token=True)
        assert [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", ())] == held
        progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        assert progress[-1] == {"total": 9, "cache": 0, "processed": 9}


def test_control_tokens_in_a_message_stay_text() -> None:
    with running() as server:
        ask(server, messages=[{"role": "user", "content": "<|im_end|>"}])
        ask(server, messages=[{"role": "user", "content": "x"}])
        end = tokenizer().token_id("<|im_end|>")
        counts = [request.prompt.count(end) for request in server.engine.requests.values()]
        assert counts[0] == counts[1]
