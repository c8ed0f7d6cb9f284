"""`python -m tests.gpu.tiers`: do windows whose experts lie in three tiers give the bits of a card that holds them all?

For people with an NVIDIA GPU; about a minute and a half with 16 cores, most of it for compiling. First every kernel is
compiled in many processes; then models' logits, replies of whole engines and faults are checked side by side, a line
each. The number of failures is the exit code, at most 100. `--device cpu` checks the checks over torch's twins.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from strata.native import library
from strata.native.pool import Pool
from tests.gpu import tier_checks, tier_faults, tier_replies
from tests.gpu.tier_models import MODELS, PUBLISHED

COMPILERS = {"qwen4_exp-code4": 4, PUBLISHED: 5}  # processes of a model; others have two
CHECKERS = 2
THREADS = {PUBLISHED: 4}  # of a process's pool; others have two
TASK_SECONDS, TASK_SECONDS_ON_CPU = 140.0, 1200.0  # of one process: behind that something hangs
FAILED = "FAILED"
CLOCK = time.monotonic()


@dataclass(frozen=True)
class Run:
    """What all processes of a run have in common."""

    device: str
    folder: Path  # for kernels and the profile of the shipped model's engines

    def task(self, name: str) -> int:
        """Run one task in a process of its own, line by line; how many failures it had."""
        command = [sys.executable, "-m", "tests.gpu.tiers", "--device", self.device, "--task", name, str(self.folder)]
        failures, last = 0, ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            limit = TASK_SECONDS_ON_CPU if self.device == "cpu" else TASK_SECONDS
            watch = threading.Timer(limit, process.kill)
            watch.start()
            assert process.stdout is not None
            for line in process.stdout:
                failures += line.startswith(FAILED)
                last = line
                say(f"{name}: {line.rstrip()}")
            watch.cancel()
        if process.returncode < 0 or (process.returncode and not failures):
            say(f"{FAILED} {name}: its process ended with {process.returncode} behind: {last.strip()}")
            failures += 1
        return failures

    def tasks(self, names: Sequence[str]) -> int:
        """Run tasks side by side; how many failures they had."""
        with ThreadPoolExecutor(max(1, len(names))) as threads:
            return sum(threads.map(self.task, names))


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.monotonic() - CLOCK:6.1f} s] {text}", flush=True)


def run_task(name: str, device: torch.device, folder: Path) -> int:
    """One task in this process; how many of its checks failed."""
    kind, _, rest = name.partition(":")
    model, _, cut = rest.partition(":")
    torch.set_num_threads(1)
    if device.type == "cuda" and kind != "shipped":
        from strata.kernels.compiled import settle_keys

        settle_keys()  # what one process compiled the others find
    with Pool(THREADS.get(model, 2)) as pool:
        if kind == "compile":
            share, shares = map(int, cut.split("/"))
            count = tier_checks.compile_share(model, share, shares, pool, device)
            print(f"{count} steps ran", flush=True)
            return 0
        return run_checks(_checks(kind, model, cut, pool, device, folder))


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
            print(f"{what}: {found} ({time.monotonic() - begin:.1f} s)", flush=True)
    return failures


def _checks(
    kind: str, model: str, cut: str, pool: Pool, device: torch.device, folder: Path
) -> Iterator[tuple[str, tier_checks.Check]]:
    if kind == "logits":
        share, shares = map(int, cut.split("/"))
        yield from list(tier_checks.checks_of(model, pool, device))[share::shares]
    elif kind == "replies":
        yield from tier_replies.checks_of(model, pool, device)
    elif kind == "shipped":
        yield from tier_replies.shipped_checks(folder)
    else:
        yield from tier_faults.checks_of(device)


def check_tasks(models: Sequence[str]) -> list[str]:
    """What runs once the kernels are there."""
    tasks = [f"logits:{model}:{share}/{CHECKERS}" for model in models for share in range(CHECKERS)]
    tasks += [f"replies:{model}" for model in models if model != PUBLISHED]
    return [*tasks, "faults:"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--task", nargs=2, metavar=("NAME", "FOLDER"), help="only this, in this process")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if arguments.task:
        return min(100, run_task(arguments.task[0], device, Path(arguments.task[1])))
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no NVIDIA GPU here: `--device cpu` checks the checks")
        return 2
    if not library.is_available():
        print("the C++ library was not built, and it computes the experts that are not on the card: `make native`")
        return 2
    with tempfile.TemporaryDirectory(prefix="strata-tiers-") as folder:
        failures = check_all(Run(arguments.device, Path(folder)), arguments.models)
    say(f"{failures} failed" if failures else "all passed")
    return min(100, failures)


def check_all(run: Run, models: Sequence[str]) -> int:
    """Compile, then check; engines compile for themselves and begin at once. How many checks failed."""
    is_gpu = run.device != "cpu"
    with ThreadPoolExecutor(1) as beside:
        shipped = beside.submit(run.tasks, ["shipped:"] if is_gpu else [])
        failures = 0
        if is_gpu:
            counts = {model: COMPILERS.get(model, 2) for model in models}
            names = [f"compile:{model}:{n}/{count}" for model, count in counts.items() for n in range(count)]
            failures += run.tasks(names)
            say(f"compiled by {len(names)} processes")
        return failures + run.tasks(check_tasks(models)) + shipped.result()


if __name__ == "__main__":
    sys.exit(main())
