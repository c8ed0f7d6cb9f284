"""The peer bench without a peer: a process that plays llama.cpp, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strata.bench import llama_cpp, peer, peer_worker
from strata.bench.parts import OUTSIDE, profile_parts
from strata.bench.peer import PeerPlan, PeerProcess, compare_with_peer
from strata.cli.app import run
from strata.cli.convert import convert_model
from strata.errors import EngineError

# Plays the peer with a model of Strata's own, so that the logits agree; its argument 4 may spoil them.
STAND_IN = """
import json, sys, torch
from pathlib import Path
from strata.build import load_model
from strata.models.base import Segment
from strata.settings import EngineSettings
model = load_model(Path(sys.argv[1]), EngineSettings(threads=1)).engine.model
print(json.dumps({"vocabulary_size": model.vocabulary_size}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    logits = model.read([Segment(model.new_state(), torch.tensor(command["prompt"]))]).logits[0] * FACTOR
    print(json.dumps({"read_seconds": 1.0, "decode_seconds": 2.0, "logits": logits.tolist()}), flush=True)
"""


@pytest.fixture(scope="module")
def gguf(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("peer") / "tiny.gguf"
    convert_model(tiny_model, out, "Q8_0")
    return out


def play_peer(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the worker's process run other code."""

    def instead(command: list[str], **options: Any) -> Any:
        return subprocess.Popen([sys.executable, "-c", code, *command[3:]], **options)

    monkeypatch.setattr(peer, "start_process", instead)
    monkeypatch.setattr(peer, "is_installed", lambda: True)
    monkeypatch.setenv("PYTHONPATH", "src")


def test_both_are_measured_in_turns(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_peer(monkeypatch, STAND_IN.replace("FACTOR", "1.0"))
    report = compare_with_peer(PeerPlan(gguf, threads=1, rounds=2, prompt_tokens=20, decode_tokens=5))
    assert report.kl < 1e-3
    assert report.theirs["prompt"].median == 20.0
    assert report.theirs["decode"].median == 2.0
    ours = report.ours["decode"]
    assert 0.0 < ours.lowest <= ours.median <= ours.highest
    assert report.decode_ratio > 0.0
    written = json.loads(report.as_json())
    assert written["plan"]["file"] == "tiny.gguf"
    assert sum(written["decode_parts"].values()) > 0.0


def test_no_speed_is_printed_if_the_peer_computes_something_else(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_peer(monkeypatch, STAND_IN.replace("FACTOR", "-4.0"))
    with pytest.raises(EngineError, match="not compute the same model"):
        compare_with_peer(PeerPlan(gguf, threads=1, rounds=1, prompt_tokens=20, decode_tokens=5))


def test_a_peer_that_ends_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_peer(monkeypatch, 'print(\'{"error": "no such file"}\')')
    with pytest.raises(EngineError, match="no such file"):
        PeerProcess(PeerPlan(tmp_path / "model.gguf", 1), 100)
    play_peer(monkeypatch, "import sys; sys.exit(7)")
    with pytest.raises(EngineError, match="without an answer, with exit code 7"):
        PeerProcess(PeerPlan(tmp_path / "model.gguf", 1), 100)


def test_a_missing_peer_says_how_to_get_it(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peer, "is_installed", lambda: False)
    assert run(["bench", "peer", str(gguf), "--cpu"]) == 1
    assert f"pip install {llama_cpp.PACKAGE}" in capsys.readouterr().err
    assert run(["bench", "peer", "model.gguf"]) == 2
    assert run(["bench", "peer", "model.gguf", "--cpu", "--rounds", "0"]) == 2


def test_a_wrong_file_is_told_before_a_missing_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peer, "is_installed", lambda: False)
    (tmp_path / "notes.txt").write_text("no model, but long enough for a header")
    cases = {"none": "there is no file", "": "is not a regular file", "notes.txt": "is no GGUF file"}
    for name, words in cases.items():
        assert run(["bench", "peer", str(tmp_path / name), "--cpu"]) == 2
        assert words in capsys.readouterr().err


def test_the_worker_reads_the_prompt_and_then_token_by_token() -> None:
    calls: list[list[int]] = []

    class Recorder:
        def clear(self) -> None:
            calls.clear()

        def read(self, token_ids: list[int]) -> list[list[float]]:
            calls.append(list(token_ids))
            return [[0.5, 1.25]]

    answer = peer_worker.run_round(Recorder(), [1, 2, 3], [4, 5])  # type: ignore[arg-type]
    assert calls == [[1, 2, 3], [4], [5]]
    assert answer["logits"] == [0.5, 1.25]
    assert answer["read_seconds"] >= 0.0 <= answer["decode_seconds"]


def test_a_model_without_native_windows_has_one_part() -> None:
    assert list(profile_parts(object(), lambda: None)) == [OUTSIDE]
