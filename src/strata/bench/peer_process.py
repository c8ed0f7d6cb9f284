"""llama.cpp in a process of its own: how it is started, asked and ended, and which of its settings are the fastest.

Knows the lines that go back and forth; what llama.cpp does with them is in `peer_worker.py`.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from strata.bench.llama_cpp import BATCH_ROWS, Placement
from strata.errors import EngineError

start_process = subprocess.Popen
TRIED_RUNS = 2  # of each setting; the faster one counts


@dataclass(frozen=True)
class PeerStart:
    """What the process is started with."""

    file: Path
    threads: int
    context: int
    placement: Placement
    batch_rows: int = BATCH_ROWS

    def as_json(self) -> str:
        """For `from_json` in the other process."""
        return json.dumps(asdict(self) | {"file": str(self.file)})

    @classmethod
    def from_json(cls, text: str) -> "PeerStart":
        """What `as_json` gave."""
        values = json.loads(text)
        placed = values["placement"]
        placement = Placement(**placed | {"cpu_expert_layers": tuple(placed["cpu_expert_layers"])})
        return cls(**values | {"file": Path(values["file"]), "placement": placement})


class PeerProcess:
    """llama.cpp in its own process; leaves when the context ends."""

    def __init__(self, start: PeerStart) -> None:
        command = [sys.executable, "-m", "strata.bench.peer_worker", start.as_json()]
        self._process = start_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            self.vocabulary_size = int(self._answer()["vocabulary_size"])
        except EngineError:
            self._stop()
            raise

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, prompt: list[int], follow: list[int], threads: int | None = None) -> dict[str, Any]:
        """Read a prompt from an empty state, then the tokens behind it one by one; with other threads from now on."""
        assert self._process.stdin is not None
        command = {"prompt": prompt, "follow": follow, "threads": threads}
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineError("llama.cpp's process has ended") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"llama.cpp's process ended without an answer, with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def _stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def fastest_start(start: PeerStart, prompt: list[int], follow: list[int]) -> PeerStart:
    """The settings with which a prompt and the tokens behind it come fastest.

    `start` itself unless experts are on the processor. Those are tried in memory that is pinned and that is not, each
    with all threads and with one fewer: which is best differs from PC to PC (by a tenth on the one where that was
    looked at).
    """
    if not start.placement.cpu_expert_layers:
        return start
    seconds: dict[PeerStart, float] = {}
    for no_host in (False, True):
        there = replace(start, placement=replace(start.placement, no_host=no_host))
        with PeerProcess(there) as peer:
            for threads in sorted({start.threads, max(1, start.threads - 1)}, reverse=True):
                runs = [peer.run(prompt, follow, threads) for _ in range(TRIED_RUNS)]
                seconds[replace(there, threads=threads)] = min(
                    run["read_seconds"] + run["decode_seconds"] for run in runs
                )
    return min(seconds, key=lambda tried: seconds[tried])
