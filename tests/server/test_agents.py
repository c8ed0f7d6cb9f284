"""Conversations of several turns as coding agents hold them: Claude Code, Codex and opencode, over a fake engine.

The requests are written after what these programs send; the tools are fewer.
"""

import json
from typing import Any

from strata.engine.request import TokenRequest
from tests.server.fake_engine import Reply, Script, tokenizer
from tests.server.running import Running, parse_events, running

READ: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CALL = (
    "<think>\nI need the file.\n</think>\n\nI read it.\n"
    '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'
)


def reply(request: TokenRequest) -> Reply:
    """A call at first, then an answer."""
    has_result = "print(1)" in tokenizer().decode(request.prompt, show_special=True)
    return Reply("It prints 1." if has_result else CALL)


def agent_server() -> Any:
    return running(Script(reply, context=8192))


def prompts(server: Running) -> list[str]:
    requests = server.engine.requests
    return [tokenizer().decode(requests[number].prompt, show_special=True) for number in sorted(requests)]


def test_claude_code_reads_a_file_and_its_second_turn_begins_as_the_first() -> None:
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
        "authorization": "Bearer any",
        "x-app": "cli",
    }
    schema = READ | {"$schema": "http://json-schema.org", "additionalProperties": False}
    tools = [{"name": "read", "description": "Reads a file.", "input_schema": schema}]

    def body(turn: int, messages: list[Any]) -> dict[str, Any]:
        cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
        billing = f"x-anthropic-billing-header: cc_version=2.1.332; cc_entrypoint=cli; cch={turn};"
        return {
            "model": "claude-opus-4-8",
            "max_tokens": 1024,
            "stream": True,
            "metadata": {"user_id": "user_1"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "system": [
                {"type": "text", "text": billing},
                {"type": "text", "text": "You are an agent.", **cached},
            ],
            "tools": tools,
            "messages": messages,
        }

    with agent_server() as server:
        counted = server.post("/v1/messages/count_tokens?beta=true", {"messages": [{"role": "user", "content": "foo"}]})
        assert counted["input_tokens"] > 0
        reminder = {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"}
        messages: list[Any] = [{"role": "user", "content": [reminder, {"type": "text", "text": "What does a.py do?"}]}]
        events = _stream(server, "/v1/messages?beta=true", body(1, messages), headers)
        blocks = _blocks(events)
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
        assert _stop_reason(events) == "tool_use"
        result = {"type": "tool_result", "tool_use_id": blocks[2]["id"], "content": "print(1)"}
        result["cache_control"] = {"type": "ephemeral"}
        messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
        events = _stream(server, "/v1/messages?beta=true", body(2, messages), headers)
        assert [block["text"] for block in _blocks(events)] == ["It prints 1."]
        assert _stop_reason(events) == "end_turn"
        first, second = prompts(server)
        assert second.startswith(first)  # so that the kept conversation goes on


def test_codex_reads_a_file() -> None:
    tools: list[Any] = [
        {"type": "function", "name": "read", "description": "Reads.", "strict": False, "parameters": READ},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "list", "parameters": READ}]},
    ]

    def body(items: list[Any]) -> dict[str, Any]:
        return {
            "model": "gpt-5-codex", "instructions": "You are Codex.", "input": items, "tools": tools,
            "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False, "stream": True,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"},
        }  # fmt: skip

    with agent_server() as server:
        probe = server.post("/v1/responses", {"model": "m", "input": [], "max_output_tokens": 1})
        assert probe["status"] == "incomplete"
        items: list[Any] = [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: on."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What does a.py do?"}]},
        ]
        final = server.events("/v1/responses", body(items))[-1][1]["response"]
        call = final["output"][-1]
        assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"path": "a.py"})
        assert len(final["warnings"]) == 2
        items += [*final["output"], {"type": "function_call_output", "call_id": call["call_id"], "output": "print(1)"}]
        final = server.events("/v1/responses", body(items))[-1][1]["response"]
        assert final["output"][0]["content"][0]["text"] == "It prints 1."
        assert prompts(server)[2].startswith(prompts(server)[1])


def test_opencode_reads_a_file() -> None:
    tool = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": READ}}

    def body(messages: list[Any]) -> dict[str, Any]:
        options = {"stream": True, "stream_options": {"include_usage": True}, "tool_choice": "auto"}
        return options | {"model": "local", "max_tokens": 1000, "tools": [tool], "messages": messages}

    with agent_server() as server:
        messages: list[Any] = [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": [{"type": "text", "text": "What does a.py do?"}]},
        ]
        chunks = [data for _, data in server.events("/v1/chat/completions", body(messages))[:-1]]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        parts = [call for delta in deltas for call in delta.get("tool_calls", ())]
        arguments = "".join(part["function"]["arguments"] for part in parts)
        call = {"id": parts[0]["id"], "type": "function", "function": {"name": "read", "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": "I read it.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "print(1)"},
        ]
        chunks = [data for _, data in server.events("/v1/chat/completions", body(messages))[:-1]]
        texts = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
        assert "".join(texts) == "It prints 1."
        assert chunks[-1]["usage"]["prompt_tokens"] > 0


def _stream(server: Running, path: str, body: Any, headers: dict[str, str]) -> list[tuple[str | None, Any]]:
    status, _, text = server.request("POST", path, body, headers)
    assert status == 200, text
    return list(parse_events(text))


def _blocks(events: list[tuple[str | None, Any]]) -> list[dict[str, Any]]:
    """The message's blocks as a client puts them together."""
    blocks: list[dict[str, Any]] = []
    pieces = ""
    for name, data in events:
        if name == "content_block_start":
            blocks.append(dict(data["content_block"]))
            pieces = ""
        elif name == "content_block_delta":
            delta = data["delta"]
            for field in ("text", "thinking", "signature"):
                if field in delta:
                    blocks[-1][field] += delta[field]
            pieces += delta.get("partial_json", "")
        elif name == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(pieces)
    return blocks


def _stop_reason(events: list[tuple[str | None, Any]]) -> Any:
    return next(data["delta"]["stop_reason"] for name, data in events if name == "message_delta")
