"""`strata serve` as a process: the whole road to a real engine, how it ends, and what it says when it cannot begin."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.cli.app import run
from strata.cli.exit_codes import EXIT_USER_MISTAKE
from strata.errors import SettingsError
from strata.server.run import addresses_of, listen
from strata.server.service import CLOSE_SECONDS
from tests.server.serving import Serving, Streaming, serving

CHAT = {"messages": [{"role": "user", "content": "What does harbour mean?"}], "temperature": 0}
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 20_000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """The shipped model, with two slots."""
    with serving("--slots", "2", "--context", "2048", "--top-k", "8000") as running:
        running.until_ready()
        yield running


def test_what_is_printed_and_answered(server: Serving) -> None:
    server.until(lambda: any("ready:" in line for line in server.out))
    printed = "".join(server.out)
    for part in ("listening on http://127.0.0.1:", "pocket: qwen4_exp", "memory: weights", "ready: OpenAI clients use"):
        assert part in printed
    status, answer = server.ask("POST", "/v1/chat/completions", CHAT)
    assert status == 200
    assert "port" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_sampling_that_the_server_is_told_is_what_a_request_gets(server: Serving) -> None:
    _, props = server.ask("GET", "/props")
    shown = props["default_generation_settings"]["params"]
    assert (shown["top_k"], shown["temperature"]) == (8000, 1.0)


def test_a_reply_has_the_least_tokens_that_it_must_have(server: Serving) -> None:
    usual = server.ask("POST", "/v1/chat/completions", CHAT)[1]["usage"]["completion_tokens"]
    status, answer = server.ask("POST", "/v1/chat/completions", CHAT | {"min_tokens": usual + 10, "max_tokens": 400})
    assert status == 200 and answer["usage"]["completion_tokens"] > usual + 10


def test_the_same_question_has_the_same_answer_in_every_api(server: Serving) -> None:
    chat = server.ask("POST", "/v1/chat/completions", CHAT)[1]["choices"][0]["message"]["content"]
    message = server.ask("POST", "/v1/messages", CHAT | {"max_tokens": 200})[1]["content"][0]["text"]
    items = {"input": "What does harbour mean?", "temperature": 0}
    response = server.ask("POST", "/v1/responses", items)[1]["output"][0]["content"][0]["text"]
    assert chat == message == response


def test_logprobs_of_an_echoed_prompt_are_those_of_the_same_tokens_decoded(server: Serving) -> None:
    body = {"prompt": "Once upon a time", "temperature": 0, "logprobs": 1, "max_tokens": 6}
    first = server.ask("POST", "/v1/completions", body | {"return_token_ids": True})[1]["choices"][0]
    whole = first["prompt_token_ids"] + first["token_ids"]
    second = server.ask("POST", "/v1/completions", body | {"prompt": [whole], "echo": True, "max_tokens": 0})
    scored = second[1]["choices"][0]["logprobs"]["token_logprobs"][-6:]
    assert scored == pytest.approx(first["logprobs"]["token_logprobs"], abs=1e-4)


def test_a_schema_is_followed(server: Serving) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    status, answer = server.ask("POST", "/v1/chat/completions", CHAT | {"response_format": form, "max_tokens": 100})
    assert status == 200, answer
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"n"}
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    status, answer = server.ask("POST", "/v1/chat/completions", CHAT | {"response_format": bad})
    assert status == 400, answer


def test_a_call_that_is_required_is_made(server: Serving) -> None:
    parameters = {"type": "object", "properties": {"word": {"enum": ["tea", "cake"]}}, "required": ["word"]}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    body = CHAT | {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    status, answer = server.ask("POST", "/v1/chat/completions", body)
    assert status == 200, answer
    call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "look" and json.loads(call["arguments"])["word"] in ("tea", "cake")
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_the_next_turn_continues_in_the_slot(server: Serving) -> None:
    turns = list(CHAT["messages"])
    answer = server.ask("POST", "/v1/chat/completions", CHAT | {"messages": turns})[1]
    turns += [answer["choices"][0]["message"], {"role": "user", "content": "And tea?"}]
    again = server.ask("POST", "/v1/chat/completions", CHAT | {"messages": turns})[1]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 10


def test_what_is_no_http_is_a_line_of_the_log_like_any_other(server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"no http\r\n\r\n")
        assert b"400" in connection.recv(1 << 12)
    server.until(lambda: any("Invalid HTTP request" in line for line in server.err), seconds=10)
    told = [json.loads(line) for line in server.err if "Invalid HTTP request" in line]
    assert [line["level"] for line in told] == ["warning"]


def test_a_large_text_does_not_stop_the_others_and_leaves_no_memory_behind(server: Serving) -> None:
    server.ask("POST", "/tokenize", {"content": "\U0001f600" * 500_000})
    before = server.rss_bytes()
    gaps = []
    large = threading.Thread(target=server.ask, args=("POST", "/tokenize", {"content": "\U0001f600" * 500_000}))
    large.start()
    while large.is_alive():
        asked = time.monotonic()
        assert server.ask("GET", "/health")[0] == 200
        gaps.append(time.monotonic() - asked)
    assert len(gaps) > 1
    assert server.rss_bytes() < before + (64 << 20)
    for _ in range(3):
        status, answer = server.ask("POST", "/v1/completions", {"prompt": "ab " * 1_000_000, "max_tokens": 2})
        assert status == 400 and "at least 187,500 tokens" in answer["error"]["message"]
    assert server.rss_bytes() < before + (64 << 20)


def test_a_client_that_leaves_frees_its_slot_within_a_window(server: Serving) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            content = json.dumps(ENDLESS).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            assert b"200 OK" in connection.recv(1 << 12)
    server.until(lambda: not any(slot["is_processing"] for slot in server.ask("GET", "/slots")[1]), seconds=10)


def test_the_engine_killed_under_load_comes_back_and_nobody_hangs(server: Serving) -> None:
    streams = [Streaming(server, ENDLESS) for _ in range(4)]  # two of them wait
    server.until(lambda: sum(stream.has_begun.is_set() for stream in streams) >= 2, seconds=30)
    killed = time.monotonic()
    server.kill_engine()
    server.until(lambda: server.ask("GET", "/health", timeout=1)[0] == 503, seconds=1)
    assert time.monotonic() - killed < 1
    for stream in streams:
        stream.join(2)
        assert not stream.is_alive()
        assert "signal 9" in stream.received and "[DONE]" not in stream.received
    server.until_ready()
    assert server.ask("POST", "/v1/chat/completions", CHAT)[0] == 200
    assert server.ask("GET", "/strata/status")[1]["restarts"] == 1


def test_sigterm_lets_running_replies_finish_and_ends_with_0() -> None:
    with serving("--slots", "2", "--context", "2048") as server:
        server.until_ready()
        stream = Streaming(server, ENDLESS | {"max_tokens": 500})
        assert stream.has_begun.wait(30)
        server.signal(signal.SIGTERM)
        server.until(lambda: server.ask("GET", "/health")[0] == 503)
        server.until(lambda: "waiting for 1 reply, at most 30 s; Ctrl-C again ends them\n" in server.out)
        status, answer = server.ask("POST", "/v1/chat/completions", CHAT)
        assert (status, answer["error"]["code"]) == (503, "draining")
        assert server.wait(30) == 0
        stream.join(5)
        assert "data: [DONE]" in stream.received
        assert '"finish_reason":"length"' in stream.received


def test_a_second_signal_ends_streams_with_an_error_event_and_0() -> None:
    with serving("--slots", "1", "--context", "32768") as server:
        server.until_ready()
        stream = Streaming(server, ENDLESS)
        assert stream.has_begun.wait(30)
        server.signal(signal.SIGINT)
        server.until(lambda: server.ask("GET", "/health")[0] == 503)
        server.signal(signal.SIGINT)
        assert server.wait(15) == 0
        stream.join(5)
        assert "stopped before this reply was complete" in stream.received
        assert "[DONE]" not in stream.received


def test_a_signal_while_the_model_is_loaded_ends_it_too() -> None:
    with serving() as server:
        server.until(lambda: bool(server.out))
        server.signal(signal.SIGINT)
        assert server.wait(CLOSE_SECONDS) == 0, "nobody waited for an engine that does not hear"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/no/such/model"], "there is no model at /no/such/model"),
        (["/a", "--model", "/b"], "two models are given"),
        (["--host", "bogus.invalid"], "is no address of this machine"),
        (["--host", ""], "setting host is empty"),
        (["--api-key", ","], "holds no key"),
        (["--host", "0.0.0.0"], "an API key is needed"),
        (["--host", "no.such.host.invalid", "--api-key", "k"], "is no address of this machine"),
        (["--max-body-mib", "0"], "from 1 to 4096"),
    ],
)
def test_what_cannot_begin_says_why_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == EXIT_USER_MISTAKE
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and words in printed.err
    assert printed.out == "", "it has not said that it listens"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/no/such/model"], "there is no model at /no/such/model"),
        (["--context", "999999999"], "at most 65536 tokens"),  # only the engine knows: it listens by then
    ],
)
def test_a_process_that_cannot_begin_ends_with_2(arguments: list[str], words: str) -> None:
    with serving(*arguments) as server:
        assert server.wait(60) == EXIT_USER_MISTAKE
        time.sleep(0.1)
        assert len(server.err) == 1 and words in server.err[0]
        assert bool(server.out) == ("tokens" in words)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen("127.0.0.1", port)


def test_localhost_is_every_address_of_this_machine_on_one_port() -> None:
    sockets = listen("localhost", 0)
    try:
        assert len({address.rpartition(":")[2] for address in addresses_of(sockets)}) == 1
        assert addresses_of(sockets)[0].startswith("http://")
    finally:
        for listening in sockets:
            listening.close()


def test_without_the_extra_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    from strata.cli import serve as command

    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "fastapi" else object())
    with pytest.raises(SettingsError, match="needs fastapi: pip install 'strata-moe\\[server\\]'"):
        command.serve()
