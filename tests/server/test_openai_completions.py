"""Completions over a fake engine: prompts of every kind, echo, log-probabilities as evaluation harnesses read them."""

from typing import Any

import pytest

from tests.server.fake_engine import Reply, Script, tokenizer
from tests.server.running import Running, running

PATH = "/v1/completions"


def ask(server: Running, **fields: Any) -> dict[str, Any]:
    return server.post(PATH, fields)


def refused(server: Running, **fields: Any) -> dict[str, Any]:
    status, _, answer = server.request("POST", PATH, fields)
    assert status == 400, answer
    return answer["error"]


def said(text: str, **how: Any) -> Script:
    return Script(lambda request: Reply(text, **how))


def test_a_text_is_continued() -> None:
    with running(said(" upon a time")) as server:
        answer = ask(server, prompt="Once")
        assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
        assert answer["choices"] == [
            {"index": 0, "text": " upon a time", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        ]
        assert server.engine.requests[1].options.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Once", [("Once",)]),
        (["Once", "Twice"], [("Once",), ("Twice",)]),
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
    ],
)
def test_prompts_of_every_kind(prompt: Any, expected: list[Any]) -> None:
    with running() as server:
        answer = ask(server, prompt=prompt, n=2)
        asked = [request.prompt for request in server.engine.requests.values()]
        ids = [tuple(tokenizer().encode(p[0])) if isinstance(p[0], str) else p for p in expected]
        assert asked == [p for p in ids for _ in range(2)]
        assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(ids)))
        assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_an_echo_scores_the_prompt_as_lm_eval_reads_it() -> None:
    prompt = tokenizer().encode("Once upon a time")
    with running() as server:
        answer = ask(server, prompt=[prompt], echo=True, logprobs=1, max_tokens=1, temperature=0)
        choice = answer["choices"][0]
        held = choice["logprobs"]
        assert choice["text"].startswith("Once upon a time")
        assert len(held["token_logprobs"]) == len(held["top_logprobs"]) == len(prompt) + 1
        assert held["token_logprobs"][0] is None and held["top_logprobs"][0] is None
        for logprob, likeliest in list(zip(held["token_logprobs"], held["top_logprobs"], strict=True))[1:]:
            assert logprob == max(likeliest.values())
        starts = [choice["text"][offset:] for offset in held["text_offset"]]
        assert all(rest.startswith(token) for rest, token in zip(starts, held["tokens"], strict=True))


def test_nothing_is_drawn_where_only_scores_are_wanted() -> None:
    with running() as server:
        answer = ask(server, prompt="Once upon", echo=True, logprobs=0, max_tokens=0)
        choice = answer["choices"][0]
        assert choice["text"] == "Once upon"
        assert len(choice["logprobs"]["tokens"]) == len(tokenizer().encode("Once upon"))
        assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "logprobs": 2}, {"n": 2, "logprobs": 1}])
def test_stream_and_whole_answer_say_the_same(fields: dict[str, Any]) -> None:
    with running(said(" upon a time")) as server:
        whole = ask(server, prompt="Once", **fields)["choices"]
        events = server.events(PATH, {"prompt": "Once", "stream": True} | fields)
        assert events[-1] == (None, "[DONE]")
        for choice in whole:
            mine = [data["choices"][0] for _, data in events[:-1] if data["choices"][0]["index"] == choice["index"]]
            assert "".join(part["text"] for part in mine) == choice["text"]
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            if choice["logprobs"] is not None:
                for name, values in choice["logprobs"].items():
                    assert [v for part in mine if part["logprobs"] for v in part["logprobs"][name]] == values


def test_a_stream_ends_with_usage_if_asked_for() -> None:
    with running() as server:
        events = server.events(PATH, {"prompt": "Once", "stream": True, "stream_options": {"include_usage": True}})
        assert events[-2][1]["usage"]["prompt_tokens"] == len(tokenizer().encode("Once"))


def test_bytes_that_are_no_text_are_named_as_bytes() -> None:
    ids = tokenizer().encode("🐦")
    assert len(ids) > 1
    with running() as server:
        tokens = ask(server, prompt=ids, echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]["tokens"]
        assert tokens[0].startswith("bytes:\\x")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "prompt", "missing"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "prompt is an empty list"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": [5, "a"]}, "prompt", "prompt.1 is 'a'; it must be a whole number"),
        ({"prompt": [99999]}, "prompt", "0 to 8191"),
        ({"prompt": [-1]}, "prompt", "0 to 8191"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "0 to 20"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "between"),
        ({"prompt": "a", "best_of": 3}, "best_of", "value of n"),
        ({"prompt": ["a"] * 100, "n": 100}, "prompt", "100 prompts"),
        ({"prompt": [5] * 600}, None, "context 512"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: Any, param: str | None, words: str) -> None:
    with running() as server:
        error = refused(server, **fields)
        assert words in error["message"]
        assert param is None or error["param"].startswith(param)
