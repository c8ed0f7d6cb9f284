"""The official Python SDKs of OpenAI and Anthropic against a server over a fake engine: what people's programs do."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.server.fake_engine import Reply, Script
from tests.server.running import Running, running

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
FULL = (
    '<think>\nI wonder.\n</think>\n\nI look.\n<tool_call>\n{"name": "look", "arguments": {"word": "tea"}}\n</tool_call>'
)


@pytest.fixture
def server() -> Iterator[Running]:
    with running(Script(lambda request: Reply("Hello there."))) as server:
        yield server


@pytest.fixture
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)


@pytest.fixture
def claude(server: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)


def test_openai_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=HI)
    assert answer.choices[0].message.content == "Hello there."
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    text = ""
    for chunk in client.chat.completions.create(
        model="m", messages=HI, stream=True, stream_options={"include_usage": True}
    ):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    assert text == "Hello there."
    assert chunk.usage.completion_tokens == 4


def test_openai_tools_and_reasoning(server: Running, client: openai.OpenAI) -> None:
    server.script.reply = lambda request: Reply(FULL)
    message = client.chat.completions.create(model="m", messages=HI, tools=[LOOK]).choices[0].message
    assert message.tool_calls[0].function.name == "look"
    assert message.reasoning_content == message.reasoning == "I wonder."
    with client.chat.completions.stream(model="m", messages=HI, tools=[LOOK]) as stream:
        final = stream.get_final_completion().choices[0]
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"word": "tea"}
    assert final.finish_reason == "tool_calls"


def test_openai_json_schema_is_parsed(server: Running, client: openai.OpenAI) -> None:
    server.script.reply = lambda request: Reply('{"word": "tea"}')
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(model="m", messages=HI, response_format=form)
    assert json.loads(answer.choices[0].message.content) == {"word": "tea"}
    assert json.loads(server.engine.requests[1].grammar.source) == SCHEMA


def test_openai_logprobs_completions_and_models(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=HI, logprobs=True, top_logprobs=3)
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3
    completion = client.completions.create(model="m", prompt="Once", echo=True, logprobs=1)
    assert completion.choices[0].logprobs.tokens[0] == "Once"
    assert [model.id for model in client.models.list()] == ["pocket"]
    assert client.models.retrieve("pocket").owned_by == "strata"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_openai_responses(server: Running, client: openai.OpenAI) -> None:
    assert client.responses.create(model="m", input="hi").output_text == "Hello there."
    server.script.reply = lambda request: Reply(FULL)
    tool = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
    with client.responses.stream(model="m", input="hi", tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    with pytest.raises(openai.BadRequestError, match="stateless"):
        client.responses.create(model="m", input="hi", previous_response_id="resp_1")


def test_openai_errors_are_of_the_right_kind(server: Running, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model="m", messages=HI, n=1000)
    assert (refusal.value.param, refusal.value.type) == ("n", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 600}])
    assert refusal.value.code == "context_length_exceeded"
    server.script.reply = lambda request: Reply("", error="out of memory")
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=HI)


def test_an_error_within_a_stream_is_raised(
    server: Running, client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    server.script.reply = lambda request: Reply("word " * 30, seconds_a_token=0.02)
    with pytest.raises(openai.APIError, match="signal 9"):
        for place, _ in enumerate(client.chat.completions.create(model="m", messages=HI, stream=True)):
            if place == 2:
                server.call(server.engine.die)
    server.until_ready()
    with pytest.raises(anthropic.APIStatusError, match="signal 9"):
        for place, _ in enumerate(claude.messages.create(model="m", max_tokens=40, messages=HI, stream=True)):
            if place == 4:
                server.call(server.engine.die)


def test_a_wrong_key_is_an_authentication_error() -> None:
    with running(api_key="right") as server:
        for key, works in (("wrong", False), ("right", True)):
            for ask, error in (
                (openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0).models.list, openai),
                (anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0).models.list, anthropic),
                (anthropic.Anthropic(base_url=server.url, auth_token=key, max_retries=0).models.list, anthropic),
            ):
                if works:
                    assert ask().data
                else:
                    with pytest.raises(error.AuthenticationError):
                        ask()


def test_sdks_repeat_what_comes_back_and_not_what_failed_for_good(server: Running) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=2)
    server.script.reply = lambda request: Reply("", error="out of memory")
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=HI)
    assert len(server.engine.requests) == 1  # `x-should-retry: false`
    server.script.reply = lambda request: Reply("Hello there.")
    server.script.load_seconds = 1.0
    server.call(server.engine.die)
    server.until(lambda: not server.parts.service.condition.is_ready)
    answer = client.chat.completions.create(model="m", messages=HI)  # waits as Retry-After says
    assert answer.choices[0].message.content == "Hello there."


def test_closing_a_stream_frees_the_slot(server: Running, client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    server.script.reply = lambda request: Reply("word " * 100, seconds_a_token=0.02)
    for begin in (
        lambda: client.chat.completions.create(model="m", messages=HI, stream=True),
        lambda: claude.messages.create(model="m", max_tokens=200, messages=HI, stream=True),
    ):
        stream = begin()
        next(iter(stream))
        stream.close()
        server.until(lambda: server.parts.service.running == 0, seconds=2)
    assert not server.engine.running


def test_two_clients_at_once(server: Running) -> None:
    server.script.reply = lambda request: Reply("one two three four five", seconds_a_token=0.03)
    client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any")
    order: list[int] = []

    async def read(number: int) -> None:
        async for _ in await client.chat.completions.create(model="m", messages=HI, stream=True):
            order.append(number)

    async def both() -> None:
        await asyncio.gather(read(0), read(1))

    asyncio.run(both())
    firsts = [order.index(number) for number in (0, 1)]
    lasts = [len(order) - 1 - order[::-1].index(number) for number in (0, 1)]
    assert max(firsts) < min(lasts)  # side by side, not one behind the other


def test_anthropic_messages(server: Running, claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model="m", max_tokens=40, messages=HI, system="Be kind.")
    assert message.content[0].text == "Hello there."
    assert message.stop_reason == "end_turn"
    server.script.reply = lambda request: Reply(FULL)
    tool = {"name": "look", "input_schema": SCHEMA}
    with claude.messages.stream(model="m", max_tokens=60, messages=HI, tools=[tool]) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == {"word": "tea"}
    assert (final.stop_reason, final.usage.output_tokens > 0) == ("tool_use", True)
    assert claude.messages.count_tokens(model="m", messages=HI).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError, match="text only"):
        claude.messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]
        )


def test_every_field_of_the_openai_api_at_once(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "audio": {"format": "wav", "voice": "alloy"}, "frequency_penalty": -2, "function_call": "none",
        "functions": [{"name": "f", "description": "d", "parameters": {"foo": "bar"}}], "logit_bias": {"5": 0},
        "logprobs": True, "max_completion_tokens": 16, "max_tokens": 16, "metadata": {"foo": "string"},
        "modalities": ["text"], "moderation": {"model": "m"}, "n": 1, "parallel_tool_calls": True,
        "prediction": {"content": "string", "type": "content"}, "presence_penalty": -2, "prompt_cache_key": "k",
        "prompt_cache_options": {"mode": "auto", "ttl": "30m"}, "prompt_cache_retention": "in-memory",
        "reasoning_effort": "none", "response_format": {"type": "text"}, "safety_identifier": "s",
        "seed": -9007199254740991,
        "service_tier": "auto", "stop": "\n", "store": True,
        "stream_options": {"include_obfuscation": True, "include_usage": True},
        "temperature": 1, "tool_choice": "none", "tools": [LOOK], "top_logprobs": 0, "top_p": 1, "user": "u",
        "verbosity": "low", "web_search_options": {"search_context_size": "low"},
        "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "typical_p": 1.0, "ignore_eos": False, "min_tokens": 0,
        "stop_token_ids": [5], "chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": True,
        "continue_final_message": False, "cache_prompt": True, "id_slot": -1, "timings_per_token": True,
        "return_progress": True, "priority": 0, "session_id": "s", "thinking_token_budget": -1,
        "include_reasoning": True, "return_token_ids": True,
    }  # fmt: skip
    body = {"model": "m", "messages": [{"role": "developer", "content": "string", "name": "n"}, *HI]} | fields
    answer = client.post("/chat/completions", body=body, cast_to=dict[str, Any])
    assert answer["choices"][0]["message"]["content"] == "Hello there."
    assert client.post("/chat/completions", body=body | {"stream": True}, cast_to=str).endswith("[DONE]\n\n")


def test_every_field_of_the_anthropic_api_at_once(claude: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {
        "cache_control": {"type": "ephemeral", "ttl": "5m"}, "container": "c", "inference_geo": "x",
        "metadata": {"user_id": "u"}, "output_config": {"effort": "low"}, "service_tier": "auto",
        "stop_sequences": ["\n\nHuman:"],
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "temperature": 1, "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "tools": [{"name": "look", "input_schema": SCHEMA, "description": "d", "strict": False, "type": "custom",
                   "cache_control": {"type": "ephemeral"}, "defer_loading": False,
                   "input_examples": [{"word": "tea"}]}],
        "top_k": 5, "top_p": 0.7,
    }  # fmt: skip
    body = {"model": "m", "max_tokens": 40, "messages": HI} | fields
    headers = {"anthropic-beta": "a,b", "anthropic-version": "2023-06-01"}
    answer = claude.post("/v1/messages?beta=true", body=body, cast_to=dict[str, Any], options={"headers": headers})
    assert answer["content"][0]["text"] == "Hello there."


def test_every_field_of_the_responses_api_at_once(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "background": False, "context_management": [{"type": "type"}], "include": ["message.output_text.logprobs"],
        "instructions": "Be kind.", "max_output_tokens": 40, "max_tool_calls": 3, "metadata": {"foo": "string"},
        "parallel_tool_calls": True, "prompt_cache_key": "k", "reasoning": {"effort": "low", "summary": "auto"},
        "service_tier": "auto", "store": False, "temperature": 1,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": "auto", "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}],
        "top_logprobs": 2, "top_p": 1, "truncation": "auto", "user": "u", "safety_identifier": "s",
    }  # fmt: skip
    answer = client.post("/responses", body={"model": "m", "input": "hi"} | fields, cast_to=dict[str, Any])
    assert answer["output"][0]["content"][0]["logprobs"]
