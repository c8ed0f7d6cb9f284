"""`python -m tests.gpu.tiers`: do windows whose experts lie in three tiers give the bits of a card that holds them all?

For people with an NVIDIA GPU; three minutes with 16 cores, most of it for compiling. First every kernel is compiled in
many processes, into one folder; then models' logits, replies of whole engines and faults are checked side by side, a
line each, and engines compile nothing more. Behind them a summary; the number of failures is the exit code, at most
100. `--device cpu` checks the checks over torch's twins, `--kernels` keeps what was compiled for the next time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch

from strata.native import library
from strata.native.pool import Pool
from tests.gpu import tier_checks, tier_faults, tier_replies
from tests.gpu.tier_models import MODELS, PUBLISHED

SHIPPED = "shipped"
COMPILERS = {"qwen4_exp-code4": 5, PUBLISHED: 5, SHIPPED: 4}  # processes of a model; others have two
CHECKERS = 2
THREADS = {PUBLISHED: 4}  # of a process's pool; others have two
TASK_SECONDS, TASK_SECONDS_ON_CPU = 170.0, 1200.0  # of one process: behind that something hangs
PASSED, FAILED = "passed", "FAILED"  # how a check's line begins
CLOCK = time.monotonic()


@dataclass
class Outcome:
    """How many checks passed, and the first lines of those that did not."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Both together."""
        self.passed += other.passed
        self.failed += other.failed


@dataclass(frozen=True)
class Run:
    """What all processes of a run have in common."""

    module: ClassVar[str] = "tests.gpu.tiers"
    device: str
    folder: Path  # for the profile of the shipped model's engines
    kernels: Path

    def task(self, name: str) -> Outcome:
        """Run one task in a process of its own, line by line."""
        command = [sys.executable, "-m", self.module, "--device", self.device, "--kernels", str(self.kernels)]
        command += ["--task", name, str(self.folder)]
        found, last = Outcome(), ""
        pipe, environment = subprocess.PIPE, os.environ | {"TRITON_CACHE_DIR": str(self.kernels)}
        with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment) as process:
            limit = TASK_SECONDS_ON_CPU if self.device == "cpu" else TASK_SECONDS
            watch = threading.Timer(limit, process.kill)
            watch.start()
            assert process.stdout is not None
            for line in process.stdout:
                last = line.rstrip()
                found.passed += last.startswith(PASSED)
                if last.startswith(FAILED):
                    found.failed.append(f"{name}: {last}")
                say(f"{name}: {last}")
            watch.cancel()
        if process.returncode < 0 or (process.returncode and not found.failed):
            found.failed.append(f"{name}: {FAILED}, its process ended with {process.returncode} behind: {last}")
            say(found.failed[-1])
        return found

    def tasks(self, names: Sequence[str]) -> Outcome:
        """Run tasks side by side."""
        every = Outcome()
        with ThreadPoolExecutor(max(1, len(names))) as threads:
            for found in threads.map(self.task, names):
                every.add(found)
        return every


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.monotonic() - CLOCK:6.1f} s] {text}", flush=True)


@dataclass(frozen=True)
class Task:
    """A name that a process is given, such as `logits:qwen4_exp-code4:0/2`, and where that process runs."""

    name: str
    device: torch.device
    folder: Path
    kernels: Path

    def run(self) -> int:
        """Everything, in this process; how many checks failed."""
        kind, model, cut = self.name.split(":")
        share, shares = map(int, cut.split("/"))
        torch.set_num_threads(1)
        if self.device.type == "cuda":
            from strata.kernels.compiled import settle_keys

            settle_keys()  # what one process compiled the others find
        with Pool(THREADS.get(model, 2)) as pool:
            if kind == "compile":
                return run_checks([("compile", partial(self._compile, model, share, shares, pool))])
            return run_checks(list(self._checks(kind, model, pool))[share::shares])

    def _compile(self, model: str, share: int, shares: int, pool: Pool) -> str:
        if model == SHIPPED:
            return tier_replies.compile_shipped(share, shares, self.kernels)
        return tier_checks.compile_share(model, share, shares, pool, self.device)

    def _checks(self, kind: str, model: str, pool: Pool) -> Iterator[tuple[str, tier_checks.Check]]:
        if kind == "logits":
            yield from tier_checks.checks_of(model, pool, self.device)
        elif model == SHIPPED:
            yield from tier_replies.shipped_checks(self.folder, self.kernels)
        elif kind == "replies":
            yield from tier_replies.checks_of(model, pool, self.device)
        else:
            yield from tier_faults.checks_of(self.device)


def run_checks(checks: Iterable[tuple[str, tier_checks.Check]]) -> int:
    """Each with a line; how many failed."""
    failures = 0
    for what, check in checks:
        begin = time.monotonic()
        try:
            found = check()
        except Exception:
            failures += 1
            print(f"{FAILED} {what}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"{PASSED} {what}: {found} ({time.monotonic() - begin:.1f} s)", flush=True)
    return failures


def compile_tasks(models: Sequence[str]) -> list[str]:
    """What runs first."""
    counts = {model: COMPILERS.get(model, 2) for model in models}
    return [f"compile:{model}:{share}/{count}" for model, count in counts.items() for share in range(count)]


def check_tasks(models: Sequence[str]) -> list[str]:
    """What runs once the kernels are there."""
    shares = [f"{share}/{CHECKERS}" for share in range(CHECKERS)]
    tasks = [f"logits:{model}:{share}" for model in models if model != SHIPPED for share in shares]
    tasks += [f"replies:{model}:0/1" for model in models if model not in (PUBLISHED, SHIPPED)]
    tasks += [f"replies:{SHIPPED}:{share}" for share in shares if SHIPPED in models]
    return [*tasks, f"faults:{tier_faults.MODEL}:0/1"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="*", default=(*MODELS, SHIPPED), choices=(*MODELS, SHIPPED))
    parser.add_argument("--kernels", type=Path, help="folder for compiled kernels; if not given one that is deleted")
    parser.add_argument("--task", nargs=2, metavar=("NAME", "FOLDER"), help="only this, in this process")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if arguments.task:
        name, folder = arguments.task
        return min(100, Task(name, device, Path(folder), arguments.kernels).run())
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no NVIDIA GPU here: `--device cpu` checks the checks")
        return 2
    if not library.is_available():
        print("the C++ library was not built, and it computes the experts that are not on the card: `make native`")
        return 2
    with tempfile.TemporaryDirectory(prefix="strata-tiers-") as folder:
        kernels = (arguments.kernels or Path(folder) / "kernels").resolve()
        found = check_all(Run(arguments.device, Path(folder), kernels), arguments.models)
    for line in found.failed:
        say(line)
    say(f"{found.passed} checks passed, {len(found.failed)} failed")
    return min(100, len(found.failed))


def check_all(run: Run, models: Sequence[str]) -> Outcome:
    """Compile, then check."""
    if run.device == "cpu":
        return run.tasks(check_tasks([model for model in models if model != SHIPPED]))
    found = run.tasks(compile_tasks(models))
    say("everything is compiled")
    found.add(run.tasks(check_tasks(models)))
    return found


if __name__ == "__main__":
    sys.exit(main())
