"""Runs the window checks' tasks in many processes at once, and knows what became of each of their steps.

Knows processes and files; a process that dies or takes too long costs the step that it was at, no other.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_STARTS = 12  # of one task: each process that an error left unusable costs one
STEP_SECONDS = 75.0  # without a new line: a kernel that hangs, or a compilation that does not end


@dataclass
class Task:
    """One share and how far it has come."""

    name: str
    file: Path
    starts: int = 0
    process: "subprocess.Popen[str] | None" = None
    seen_bytes: int = 0
    seen_at: float = 0.0
    killed: str = ""

    def start(self) -> None:
        """Begin, or go on behind the last step that was begun."""
        first = 1 + max((line["number"] for line in self.lines() if "number" in line), default=-1)
        command = [sys.executable, "-m", "tests.gpu.window_worker", self.name, str(self.file), str(first)]
        with self.file.with_suffix(".err").open("a") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors, text=True)
        self.starts += 1
        self.seen_at = time.monotonic()

    def lines(self) -> list[dict[str, Any]]:
        """What its processes wrote."""
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines() if line.endswith("}")]

    def has_ended(self) -> bool:
        """Whether all its steps have run."""
        return any("ended" in line for line in self.lines())

    def watch(self) -> None:
        """Note progress; end a process that has made none for too long."""
        size = self.file.stat().st_size if self.file.exists() else 0
        if size != self.seen_bytes:
            self.seen_bytes, self.seen_at = size, time.monotonic()
        elif time.monotonic() - self.seen_at > STEP_SECONDS:
            self.stop(f"nothing for {STEP_SECONDS:.0f} s")

    def stop(self, reason: str) -> None:
        """End its process."""
        if self.process is not None and self.process.poll() is None:
            self.killed = reason
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Outcome:
    """What became of one step."""

    task: str
    name: str
    passed: bool
    text: str = ""


@dataclass
class Tasks:
    """All tasks; as many run at once as there are `workers`."""

    names: Sequence[str]
    folder: Path
    workers: int = field(default_factory=lambda: max(1, min(14, (os.cpu_count() or 2) - 1)))

    def run(self, seconds: float, say: Callable[[str], None]) -> list[Outcome]:
        """Run everything that fits the time; what was not run is an outcome too."""
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = [
            Task(name, self.folder / f"{name.replace(':', '_').replace('/', 'of')}.jsonl") for name in self.names
        ]
        for task in waiting:
            task.file.unlink(missing_ok=True)
        every, end = list(waiting), time.monotonic() + seconds
        running: list[Task] = []
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < self.workers:
                running.append(waiting.pop(0))
                running[-1].start()
            time.sleep(0.2)
            for task in list(running):
                task.watch()
                if task.process is not None and task.process.poll() is not None:
                    running.remove(task)
                    if not task.has_ended() and task.starts < MOST_STARTS:
                        waiting.insert(0, task)
                    elif task.has_ended():
                        say(f"{task.name}: {sum('passed' in line for line in task.lines())} steps passed")
        for task in running:
            task.stop("the time was over")
        return [outcome for task in every for outcome in outcomes_of(task)]


def outcomes_of(task: Task) -> list[Outcome]:
    """One outcome a step, and one for a task that did not come to its end."""
    found: dict[object, Outcome] = {}
    for line in task.lines():
        if "number" not in line:
            continue
        name, number = str(line["name"]), line["number"]
        if "passed" in line:
            found[number] = Outcome(task.name, name, True)
        elif "failed" in line:
            found[number] = Outcome(task.name, name, False, str(line["failed"]))
        else:
            found[number] = Outcome(task.name, name, False, f"its process died here{_last_words(task)}")
    outcomes = list(found.values())
    if not task.has_ended():
        why = task.killed or (f"its process was started {task.starts} times" if task.starts else "never started")
        outcomes.append(Outcome(task.name, "the rest", False, f"not run: {why}{_last_words(task)}"))
    return outcomes


def _last_words(task: Task) -> str:
    errors = task.file.with_suffix(".err")
    text = errors.read_text()[-1500:].strip() if errors.exists() else ""
    return f"; {task.killed}\n{text}" if task.killed or text else ""
