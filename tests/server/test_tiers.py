"""A server whose engine is killed in the middle of a swap says so, starts another one, and answers as before."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.cli.synth import synth
from strata.engine import client
from strata.engine.client import EngineProcess
from strata.engine.messages import Load
from strata.native import library
from strata.settings import EngineSettings, ServerSettings
from tests.engine.tiered_process import FOLDER
from tests.server.running import Running

ROOT = Path(__file__).parents[2]
SOON = 60.0
SEATS_GIB = 0.0001  # of experts of 0.4 MB
ASKED = {"prompt": "The harbour", "max_tokens": 6, "temperature": 1, "seed": 5, "ignore_eos": True}
FEWER = ("vocab_size=8192", "num_hidden_layers=2")

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


class Engines:
    """Real processes over a made-up model some of whose experts have seats."""

    def __init__(self, folder: Path) -> None:
        self.started: list[EngineProcess] = []
        values: dict[str, Any] = {"device": "cuda", "gpu_path": "torch", "gpu_reads": "windows", "threads": 1}
        values |= {"slots": 2, "context": 128}
        values |= {"cache_gib": SEATS_GIB, "resident": True, "expert_profile": str(folder / "profile")}
        synth("qwen3_moe", folder / "model", fields=list(FEWER))
        self._load = Load(str(folder / "model"), EngineSettings(**values))
        self._environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", FOLDER: str(folder)}

    def launch(self) -> EngineProcess:
        self.started.append(EngineProcess.start(self._load, self._environment))
        return self.started[-1]


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    monkeypatch.setattr(client, "MODULE", "tests.engine.tiered_process")
    made = Engines(tmp_path)
    yield made
    for process in made.started:
        process.kill()


def test_an_engine_that_is_killed_in_the_middle_of_a_swap_is_told_and_the_next_one_answers_the_same(
    engines: Engines, tmp_path: Path
) -> None:
    server = Running(engines, ServerSettings())  # type: ignore[arg-type]
    try:
        server.until(lambda: server.parts.service.condition.is_ready, SOON)
        wanted = server.post("/v1/completions", ASKED)["choices"][0]["text"]
        assert len(wanted) > 6
        (tmp_path / "armed").touch()
        told: list[Any] = []
        asking = threading.Thread(
            target=lambda: told.append(server.request("POST", "/v1/completions", {**ASKED, "stream": True})[2])
        )
        asking.start()
        server.until((tmp_path / "stuck").exists, SOON)
        (tmp_path / "armed").unlink()
        os.kill(engines.started[0].pid, signal.SIGKILL)
        asking.join(SOON)
        assert "the engine's process was ended by signal 9" in str(told[0])
        server.until(lambda: len(engines.started) == 2 and server.parts.service.condition.is_ready, SOON)
        assert server.post("/v1/completions", ASKED)["choices"][0]["text"] == wanted
    finally:
        server.stop()
