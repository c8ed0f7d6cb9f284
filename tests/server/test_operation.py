"""What a running server says of itself: health, models, props, slots, metrics, status, events, page, documents, log.

Through HTTP: strata.server.routes.health, strata.server.routes.models, strata.server.routes.page,
strata.server.routes.tokenize, strata.server.metrics.
"""

import dataclasses
import gc
import http.client
import json
import re
from typing import Any

from strata.engine.messages import Statistics
from strata.server.access_log import RequestRecord, as_line
from strata.server.routes.monitor import rates
from strata.server.routes.tokenize import MOST_BYTES
from strata.types import Usage
from tests.server.fake_engine import Reply, Script, facts, tokenizer
from tests.server.running import parse_events, running

HI = {"messages": [{"role": "user", "content": "hi"}]}


def test_health_is_503_until_everything_is_loaded_and_says_how_far_it_is() -> None:
    with running(Script(load_seconds=0.3), wait=False) as server:
        server.until(lambda: server.parts.service.condition.stage != "")
        for path in ("/health", "/v1/health"):
            status, _, answer = server.request("GET", path)
            assert status == 503
            assert answer["error"]["type"] == "unavailable_error"
            assert answer["progress"] == {"stage": "loading the model", "done": 1, "total": 2}
        status, headers, answer = server.request("POST", "/v1/chat/completions", HI)
        assert (status, headers["retry-after"], answer["error"]["code"]) == (503, "5", "loading")
        for path in ("/v1/models", "/props", "/slots"):
            assert server.request("GET", path)[0] == 503
        assert server.request("POST", "/tokenize", {"content": "a"})[0] == 503
        server.until_ready()
        assert server.request("GET", "/health")[2] == {"status": "ok"}


def test_what_is_loaded_is_out_of_the_garbage_collectors_sight() -> None:
    gc.unfreeze()
    with running(shares_text=False):
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < gc.get_freeze_count()


def test_the_one_model_is_listed_under_its_name() -> None:
    with running(served_name="ours") as server:
        listed = server.request("GET", "/v1/models")[2]
        assert [model["id"] for model in listed["data"]] == ["ours"]
        assert [model["slug"] for model in listed["models"]] == ["ours"]
        assert server.request("GET", "/v1/models/ours")[2]["max_model_len"] == 512
        status, _, answer = server.request("GET", "/v1/models/theirs/x")
        assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_props_and_slots_are_as_llama_cpp_shows_them() -> None:
    with running(Script(lambda request: Reply(seconds_a_token=30))) as server:
        props = server.request("GET", "/props")[2]
        assert props["total_slots"] == 2
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert "<|im_start|>" in props["chat_template"]
        slots = server.request("GET", "/slots")[2]
        assert [slot["id"] for slot in slots] == [0, 1]
        assert server.request("GET", "/slots?fail_on_no_slot=1")[0] == 200
        with server.open_stream("/v1/chat/completions", HI), server.open_stream("/v1/chat/completions", HI):
            server.until(lambda: server.parts.service.running == 2)
            assert server.request("GET", "/slots?fail_on_no_slot=1")[0] == 503
            assert server.request("GET", "/slots")[0] == 200


def test_metrics_count_what_was_served() -> None:
    with running(Script(lambda request: Reply("Hello there.", cached=3))) as server:
        for _ in range(2):
            server.post("/v1/chat/completions", HI)
        lines = server.request("GET", "/metrics")[2].splitlines()
        values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
        assert values['vllm:request_success_total{finished_reason="stop"}'] == 2
        assert values["vllm:prompt_tokens_total"] == 18
        assert values["vllm:generation_tokens_total"] == 8
        assert values["vllm:prefix_cache_hits_total"] == 6
        assert values["vllm:time_to_first_token_seconds_count"] == 2
        assert values["vllm:inter_token_latency_seconds_count"] == 6
        assert values["vllm:num_requests_running"] == 0
        assert values["strata_ready"] == 1
        assert values['strata_expert_rows_total{place="cpu"}'] == 7
        assert not [name for name in values if "Hello" in name]


def test_experts_of_a_model_in_tiers_are_counted_under_a_name_of_their_own() -> None:
    with running() as server:
        service = server.parts.service
        server.until(lambda: service.statistics is not None)
        assert service.statistics is not None
        service.statistics = dataclasses.replace(
            service.statistics,
            experts={"vram": 5, "pcie": 2, "cpu": 3, "prompt_vram": 70, "prompt_pcie": 442},
            experts_are_rows=False,
        )
        page = server.request("GET", "/metrics")[2]
    assert 'strata_window_experts_total{place="pcie"} 2.0' in page
    assert 'strata_prompt_experts_total{place="vram"} 70.0' in page
    assert 'strata_prompt_experts_total{place="pcie"} 442.0' in page and "prompt_pcie" not in page
    assert "strata_expert_rows" not in page
    assert "strata_read_experts" not in page, "none stay in files"


def test_checkpoints_of_conversations_are_counted() -> None:
    counts = {"kept": 9, "dropped": 2, "hits": 3, "rows": 4096}
    with running() as server:
        service = server.parts.service
        server.until(lambda: service.statistics is not None)
        assert service.statistics is not None
        service.statistics = dataclasses.replace(service.statistics, checkpoints=counts, memory={"checkpoints": 118})
        page = server.request("GET", "/metrics")[2]
        status = server.request("GET", "/strata/status")[2]
    shown = ("strata_checkpoints 9.0", "strata_checkpoints_dropped_total 2.0", "strata_checkpoint_hits_total 3.0")
    for line in (*shown, "strata_checkpoint_tokens_total 4096.0", 'strata_memory_bytes{use="checkpoints"} 118.0'):
        assert line in page
    assert status["statistics"]["checkpoints"] == counts


def test_experts_that_are_read_from_files_are_counted_with_bytes_and_seconds() -> None:
    with running() as server:
        service = server.parts.service
        server.until(lambda: service.statistics is not None)
        assert service.statistics is not None
        read = {"experts": 7, "bytes": 21_000_000, "ns": 2_500_000_000}
        service.statistics = dataclasses.replace(service.statistics, experts_read=read)
        page = server.request("GET", "/metrics")[2]
        status = server.request("GET", "/strata/status")[2]
    assert "strata_read_experts_total 7.0" in page
    assert "strata_read_expert_bytes_total 2.1e+07" in page
    assert "strata_read_expert_seconds_total 2.5" in page
    assert status["statistics"]["experts_read"] == read


def test_blocks_of_keys_and_values_in_main_memory_are_counted() -> None:
    with running() as server:
        service = server.parts.service
        server.until(lambda: service.statistics is not None)
        assert service.statistics is not None
        assert "strata_kv_blocks" not in server.request("GET", "/metrics")[2], "all lie where they are read"
        pages = {"asked": 5120, "brought": 700}
        service.statistics = dataclasses.replace(service.statistics, pages=pages)
        page, status = server.request("GET", "/metrics")[2], server.request("GET", "/strata/status")[2]
    assert "strata_kv_blocks_asked_total 5120.0" in page and "strata_kv_blocks_brought_total 700.0" in page
    assert status["statistics"]["pages"] == pages


def test_parked_conversations_are_counted_where_there_is_room_for_them() -> None:
    with running() as server:
        service = server.parts.service
        server.until(lambda: service.statistics is not None)
        assert service.statistics is not None
        service.statistics = dataclasses.replace(service.statistics, parked={})
        assert "strata_parked" not in server.request("GET", "/metrics")[2]
        parked = {"kept": 3, "bytes": 700, "room": 900, "parked": 12, "dropped": 4, "returned": 5, "rows": 6000}
        memory = dict(service.statistics.memory) | {"parked": 700}
        service.statistics = dataclasses.replace(service.statistics, parked=parked, memory=memory)
        page, status = server.request("GET", "/metrics")[2], server.request("GET", "/strata/status")[2]
    assert "strata_parked_conversations 3.0" in page and "strata_parked_room_bytes 900.0" in page
    assert "strata_parked_total 12.0" in page and "strata_parked_dropped_total 4.0" in page
    assert "strata_parked_hits_total 5.0" in page and "strata_parked_tokens_total 6000.0" in page
    assert 'strata_memory_bytes{use="parked"} 700.0' in page
    assert status["statistics"]["parked"] == parked


def test_status_has_everything_but_the_keys() -> None:
    with running(api_key="secret-key") as server:
        status, _, answer = server.request("GET", "/strata/status", None, {"x-api-key": "secret-key"})
        assert status == 200
        assert answer["model"]["name"] == "pocket"
        assert answer["memory_plan"]["states"] == 2 * answer["memory_plan"]["slot"]
        assert answer["settings"]["server"]["max_body_mib"] == 32
        assert answer["settings"]["engine"]["dtype"] == "float32"
        assert answer["addresses"] == [server.url]
        assert answer["statistics"]["slots"][0]["phase"] == "idle"
        assert answer["machine"]["ram_total"] > answer["machine"]["engine"] > 0
        assert "secret-key" not in json.dumps(answer)


def test_events_begin_with_the_status_and_follow_the_engine() -> None:
    with running(Script(lambda request: Reply(read_seconds=30))) as server:
        feed = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        feed.request("GET", "/strata/events")
        answer = feed.getresponse()
        name, data = _next_event(answer)
        assert (name, data["model"]["name"]) == ("status", "pocket")
        with server.open_stream("/v1/chat/completions", HI):
            while not data["reading"]:
                name, data = _next_event(answer)
            assert (name, data["reading"][0]["total"], data["running"]) == ("statistics", 9, 1)
        server.call(server.engine.die)
        while data["restarts"] == 0 or data["phase"] != "ready":
            name, data = _next_event(answer)
        assert "signal 9" in data["last_failure"]
        feed.close()


def _next_event(answer: http.client.HTTPResponse) -> tuple[str, Any]:
    block = ""
    while not block.startswith("event"):  # pings are comments
        lines = iter(lambda: answer.readline().decode(), "\n")
        block = "".join(lines)
    name, data = next(parse_events(block.strip()))
    return str(name), data


def test_rates_are_of_the_time_between_two_statistics() -> None:
    def at(seconds: float, tokens: int) -> Statistics:
        return Statistics(seconds, seconds / 2, 2 * tokens, 0, tokens, tokens, 0, 0, 0, ())

    assert rates(at(1, 10), at(3, 30)) == {"prompt_tokens": 20, "reply_tokens": 10, "windows": 10, "busy": 0.5}
    assert rates(None, at(1, 10)) == {}
    assert rates(at(3, 30), at(1, 10)) == {}  # a new process


def test_text_goes_to_tokens_and_back_in_both_shapes() -> None:
    text = "Hello <|im_end|> there"
    with running() as server:
        llama = server.post("/tokenize", {"content": text, "parse_special": False})["tokens"]
        assert tokenizer().token_id("<|im_end|>") not in llama
        assert server.post("/detokenize", {"tokens": llama})["content"] == text
        pieces = server.post("/tokenize", {"content": text, "with_pieces": True})["tokens"]
        assert "".join(piece["piece"] for piece in pieces) == text
        vllm = server.post("/tokenize", {"prompt": "Hello", "return_token_strs": True})
        assert vllm == {
            "tokens": tokenizer().encode("Hello"),
            "count": 1,
            "max_model_len": 512,
            "token_strs": ["Hello"],
        }
        chat = server.post("/tokenize", HI)
        prompt = server.post("/apply-template", HI)["prompt"]
        assert chat["tokens"] == tokenizer().encode(prompt, control_tokens=True)
        assert server.request("POST", "/tokenize", {})[0] == 400
        assert server.request("POST", "/tokenize", {"content": "a", "prompt": "b"})[0] == 400
        assert server.request("POST", "/detokenize", {"tokens": [1 << 40]})[0] == 400
        info = server.request("GET", "/tokenizer_info")[2]
        assert (info["vocab_size"], info["eos_token"]) == (8192, "<|im_end|>")
        assert info["eos_token_id"] == tokenizer().token_id("<|im_end|>")


def test_a_long_list_of_tokens_is_whole_and_too_long_a_text_is_refused() -> None:
    text = "a b " * 20_000
    with running() as server:
        answer = server.post("/tokenize", {"prompt": text})
        assert answer["tokens"] == tokenizer().encode(text) and answer["count"] == len(answer["tokens"]) > 20_000
        status, _, refusal = server.request("POST", "/tokenize", {"content": "a" * (MOST_BYTES + 1)})
        assert (status, refusal["error"]["param"]) == (400, "content")
        assert "at most 2,097,152" in refusal["error"]["message"]


def test_every_route_is_in_the_openapi_document() -> None:
    with running() as server:
        document = server.request("GET", "/openapi.json")[2]
        expected = {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/tokenize", "/health"}
        assert expected <= set(document["paths"])
        responses = document["paths"]["/v1/chat/completions"]["post"]["responses"]
        assert "422" not in responses and "400" in responses


def test_the_page_is_served_with_a_strict_policy_and_nothing_else_is() -> None:
    with running() as server:
        status, headers, page = server.request("GET", "/")
        assert (status, page[:15].lower()) == (200, "<!doctype html>")
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        script = re.search(r"/assets/[^\"]+\.js", page)
        assert script is not None
        assert server.request("GET", script.group())[1]["content-type"].startswith(("text/javascript", "application/j"))
        for path in ("/assets/../app.py", "/assets/%2e%2e%2fapp.py", "/assets/..", "/assets/nothing.js"):
            assert server.request("GET", path)[0] == 404, path


def test_paths_and_methods_that_are_not_there() -> None:
    with running() as server:
        status, _, answer = server.request("GET", "/v1/nothing")
        assert (status, answer["error"]["type"]) == (404, "not_found_error")
        status, _, answer = server.request("POST", "/v1/embeddings", {"input": "a"})
        assert (status, answer["error"]["type"]) == (501, "not_implemented_error")
        status, headers, _ = server.request("PUT", "/v1/chat/completions", {})
        assert (status, headers["allow"]) == (405, "POST")


def test_a_request_is_one_line_of_the_log_without_its_text() -> None:
    with running(Script(lambda request: Reply("Hello there.", cached=3))) as server:
        server.request("POST", "/v1/chat/completions", HI, {"x-request-id": "mine-1"})
        server.request("GET", "/health")
        server.request("POST", "/v1/chat/completions", b"{", {"x-request-id": "not usable!"})
        server.until(lambda: len(server.log) == 2)
        good, bad = server.log
        shown = {name: good[name] for name in ("request_id", "path", "status", "end", "prompt_tokens", "cached_tokens")}
        assert shown == {
            "request_id": "mine-1", "path": "/v1/chat/completions", "status": 200, "end": "stop",
            "prompt_tokens": 9, "cached_tokens": 3,
        }  # fmt: skip
        assert good["completion_tokens"] == 4 and good["total_ms"] > 0
        assert (bad["status"], bad["end"]) == (400, "error 400")
        assert bad["request_id"].startswith("req_")
        assert "hi" not in json.dumps([good["end"], good["path"]]) and "Hello" not in json.dumps(server.log)


def test_a_log_line_of_several_choices_adds_them_up() -> None:
    record = RequestRecord("a", "POST", "/x", status=200)
    usage = Usage(9, 4, 4, 0, 0, 0.5, 0.25, cached_tokens=2)
    record.add(usage, "stop")
    record.add(usage, "length")
    line = json.loads(as_line(record, "now"))
    assert (line["choices"], line["completion_tokens"], line["prompt_tokens"]) == (2, 8, 9)
    assert (line["end"], line["read_ms"], line["decode_ms"]) == ("stop, length", 500.0, 250.0)


def test_a_bug_is_a_500_with_the_requests_id_and_stays_out_of_the_answer(monkeypatch: Any) -> None:
    secret = "a user's text"
    with running() as server:

        def broken() -> None:
            raise KeyError(secret)

        monkeypatch.setattr(server.parts, "loaded", broken)
        status, _, answer = server.request("POST", "/v1/chat/completions", HI, {"x-request-id": "mine-2"})
        assert status == 500
        assert "mine-2" in answer["error"]["message"]
        assert secret not in json.dumps([answer, server.log])
        server.until(lambda: len(server.log) == 2)
        assert server.log[0]["bug"] == "KeyError"


def test_the_text_side_is_kept_over_a_restart() -> None:
    with running(shares_text=False) as server:
        before = server.parts.text
        server.call(server.engine.die)
        server.until(lambda: len(server.script.engines) == 2)
        server.until_ready()
        assert server.parts.text is before
        assert facts().tokenizer is before.files


def test_a_client_that_only_asks_whether_somebody_is_there_is_answered() -> None:
    with running(Script()) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("HEAD", "/")  # as Claude Code does before its first message
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
        connection.close()
