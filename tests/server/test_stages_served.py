"""`torchrun -m strata serve --stages` as people run it: a model over two processes, and one of them that is killed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.api import Engine
from strata.sampling.options import SamplingOptions
from tests.server.serving import Serving, Streaming

PROMPT = "Once upon a time"


class UnderTorchrun(Serving):
    """Two processes, each with a stage on the CPU."""

    program = (
        *("torch.distributed.run", "--nproc-per-node", "2", "-m"),
        *("strata", "serve", "--stages", "--device", "cpu", "--port", "0"),
    )

    def pid_of(self, rank: int) -> int:
        """Of one of the processes that torchrun started."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    parent = int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[1])
                    environment = (folder / "environ").read_bytes().split(b"\0")
                except (OSError, IndexError):
                    continue  # it has just ended
                if parent == self.process.pid and f"RANK={rank}".encode() in environment:
                    return int(folder.name)
        raise AssertionError(f"torchrun has no process of rank {rank}")


@pytest.fixture
def served(tiny_model: Path) -> Iterator[UnderTorchrun]:
    running = UnderTorchrun(str(tiny_model), "--slots", "2", "--context", "512", "--threads", "1")
    try:
        running.until_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.signal(signal.SIGTERM)
            running.wait()


def test_two_processes_answer_as_one_and_end_together(served: UnderTorchrun, tiny_model: Path) -> None:
    request = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    status, answer = served.ask("POST", "/v1/completions", request)
    assert status == 200, answer
    with Engine(tiny_model, device="cpu", threads=1) as engine:
        options = SamplingOptions(max_tokens=6, ignore_eos=True)
        alone = engine.generate(PROMPT, options).text()
    assert answer["choices"][0]["text"] == alone

    stream = Streaming(served, request | {"max_tokens": 400, "stream": True})
    assert stream.has_begun.wait(60)
    began = time.monotonic()
    os.kill(served.pid_of(1), signal.SIGKILL)
    stream.join(30)
    last = [line for line in stream.received.splitlines() if line.startswith("data: ")][-1]
    assert "the stage of rank 1 is lost" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert served.wait(30) != 0
    assert time.monotonic() - began < 30
    assert any("stage 2 of 2 is ready" in line for line in served.out)
