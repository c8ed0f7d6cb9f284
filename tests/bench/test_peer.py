"""The peer bench without a peer: a process that plays llama.cpp, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strata.bench import llama_cpp, peer, peer_process, peer_worker
from strata.bench.llama_cpp import Placement
from strata.bench.parts import OUTSIDE, profile_parts
from strata.bench.peer import CpuExperts, PeerPlan, compare_with_peer, engine_settings, layers_on_cpu
from strata.bench.peer_process import PeerProcess, PeerStart, fastest_start
from strata.cli.app import run
from strata.cli.convert import convert_model
from strata.errors import EngineError
from strata.experts.sources import open_experts
from strata.weights.opening import open_model

# Plays the peer with a model of Strata's own, so that the logits agree; its FACTOR may spoil them.
STAND_IN = """
import json, sys, torch
from pathlib import Path
from strata.build import load_model
from strata.models.base import Segment
from strata.settings import EngineSettings
model = load_model(Path(json.loads(sys.argv[1])["file"]), EngineSettings(threads=1)).engine.model
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

    monkeypatch.setattr(peer_process, "start_process", instead)
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
        PeerProcess(PeerStart(tmp_path / "model.gguf", 1, 100, Placement()))
    play_peer(monkeypatch, "import sys; sys.exit(7)")
    with pytest.raises(EngineError, match="without an answer, with exit code 7"):
        PeerProcess(PeerStart(tmp_path / "model.gguf", 1, 100, Placement()))


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


# Is the slower the farther it is from 3 threads, and slower with pinned memory: together, whatever decoding alone says.
CHOOSY = """
import json, sys
start = json.loads(sys.argv[1])
print(json.dumps({"vocabulary_size": 9}), flush=True)
for line in sys.stdin:
    seconds = abs(json.loads(line)["threads"] - 3) + (0.5 if start["placement"]["no_host"] else 1.0)
    print(json.dumps({"read_seconds": 9.0 + 2 * seconds, "decode_seconds": 9.0 - seconds, "logits": []}), flush=True)
"""


def test_a_peer_on_a_card_reads_the_whole_prompt_at_once(gguf: Path) -> None:
    def rows(tokens: int, device: str) -> int:
        return peer.batch_rows(PeerPlan(gguf, threads=1, prompt_tokens=tokens, device=device))

    assert [rows(tokens, "cuda") for tokens in (1, 513, 8192, 32768)] == [512, 1024, 8192, 8192]
    assert rows(32768, "cpu") == 512


def test_a_peer_with_experts_on_the_processor_gets_its_fastest_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play_peer(monkeypatch, CHOOSY)
    start = PeerStart(tmp_path / "model.gguf", 4, 100, Placement(True, (0, 1)))
    found = fastest_start(start, [1], [2])
    assert found == PeerStart(tmp_path / "model.gguf", 3, 100, Placement(True, (0, 1), no_host=True))
    assert PeerStart.from_json(found.as_json()) == found
    play_peer(monkeypatch, "import sys; sys.exit(7)")
    everything_on_card = PeerStart(tmp_path / "model.gguf", 4, 100, Placement(True))
    assert fastest_start(everything_on_card, [1], [2]) is everything_on_card


def test_half_of_the_experts_is_half_of_each_layer_here_and_of_the_layers_there(gguf: Path, tmp_path: Path) -> None:
    experts = open_experts(open_model(gguf))
    layers = experts.layers()
    whole = sum(experts.count(layer) * experts.layout(layer).total_bytes for layer in layers)
    choices: tuple[CpuExperts, ...] = ("none", "half", "all")
    plans = [PeerPlan(gguf, 2, device="cuda", cpu_experts=which) for which in choices]
    assert [layers_on_cpu(plan) for plan in plans] == [(), (0, 1), tuple(range(len(layers)))]
    none, half, every = (engine_settings(plan, 100, tmp_path) for plan in plans)
    assert (none.cache_gib, every.cache_gib) == (None, 0)
    assert half.cache_gib == whole / 2 / (1 << 30)
    assert half.expert_profile == str(tmp_path / "profile")
    assert (half.threads, half.device) == (2, "cuda")


def test_experts_stay_in_main_memory_only_beside_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "peer", "model.gguf", "--cpu", "--cpu-experts", "all"]) == 2
    assert "--cpu-experts all goes with --gpu" in capsys.readouterr().err


def test_a_model_without_native_windows_has_one_part() -> None:
    assert list(profile_parts(object(), lambda: None)) == [OUTSIDE]
