"""The load bench: its figures from known times, and a run against a server over a fake engine."""

import json
from typing import Any

import pytest

from strata.bench.serve import LoadPlan, Request, figures, run_load, summed_up
from strata.cli.bench_serve import serve
from strata.errors import EngineError, SettingsError
from tests.server.fake_engine import Reply, Script
from tests.server.running import running


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert figures([0.001 * n for n in range(1, 101)]) == pytest.approx(
        {"mean": 50.5, "p50": 50, "p90": 90, "p99": 99, "max": 100}
    )
    assert figures([0.007]) == pytest.approx({"mean": 7, "p50": 7, "p90": 7, "p99": 7, "max": 7})
    assert figures([]) == {}


def test_figures_come_from_complete_replies_only() -> None:
    done = [
        Request("complete", (0.1, 0.2, 0.4), prompt_tokens=10, reply_tokens=3, seconds=0.5),
        Request("left", (0.9,)),
        Request("refused", detail="HTTP 429"),
        Request("failed", (0.1, 9.0), detail="lost"),
    ]
    report = summed_up(LoadPlan(), done, duration=2.0)
    assert (report.completed, report.left, report.refused, report.failed) == (1, 1, 1, 1)
    assert report.details == ("HTTP 429", "lost")
    assert report.ttft["max"] == pytest.approx(100)
    assert report.itl["max"] == pytest.approx(200)
    assert report.tpot["mean"] == pytest.approx(150)
    assert report.e2el["p99"] == pytest.approx(500)
    assert (report.output_throughput, report.total_token_throughput) == (1.5, 6.5)


def test_a_run_against_a_server(tmp_path: Any, capsys: Any) -> None:
    script = Script(lambda request: Reply("word " * 10, ends_itself=False, seconds_a_token=0.005), slots=4)
    with running(script, api_key="k") as server:
        file = tmp_path / "report.json"
        serve(
            server.url, api_key="k", clients=6, requests=12, prompt_words=5, reply_tokens=8, leave_share=0.3, json=file
        )
        report = json.loads(file.read_text())
        assert report["completed"] + report["left"] == 12
        assert 0 < report["left"] < 12
        assert report["total_output_tokens"] == 8 * report["completed"]
        assert report["p50_itl_ms"] >= 4
        assert report["max_e2el_ms"] >= report["p99_e2el_ms"] >= report["mean_ttft_ms"] > 0
        assert "api_key" not in report["plan"]
        assert "time to first token" in capsys.readouterr().out
        server.until(lambda: server.parts.service.running == 0)


def test_requests_can_come_at_random_times() -> None:
    with running(Script(lambda request: Reply("a"))) as server:
        report = run_load(LoadPlan(server.url, requests=10, clients=10, requests_a_second=50, reply_tokens=1, seed=3))
        assert report.completed == 10
        assert report.duration > 0.05


def test_what_is_refused_is_counted_and_said(capsys: Any) -> None:
    with running(api_key="k") as server, pytest.raises(EngineError, match="no request was answered: HTTP 401"):
        serve(server.url, requests=2)
    with pytest.raises(EngineError, match="no connection"):
        serve("http://127.0.0.1:9", requests=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": "ftp://x"}, "must look like"),
        ({"clients": 0}, "at least 1"),
        ({"leave_share": 2.0}, "from 0 to 1"),
        ({"requests_a_second": 0.0}, "above 0"),
    ],
)
def test_plans_that_cannot_be_run(changes: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        run_load(LoadPlan(**changes))
