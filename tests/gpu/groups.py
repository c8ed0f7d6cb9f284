"""`python -m tests.gpu.groups`: do two groups of slots on one card give the tokens of one, whatever happens beside?

For people with an NVIDIA GPU. First kernels are compiled in many processes, as for `tests.gpu.tiers`; then engines over
models of random weights are checked side by side, a line each. Behind them a summary; the number of failures is the
exit code, at most 100. `--device cpu` checks the checks over torch's twins, `--kernels` keeps what was compiled for the
next time.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from strata.native import library
from strata.native.pool import Pool
from tests.gpu import group_checks
from tests.gpu.tier_models import PUBLISHED
from tests.gpu.tiers import THREADS, Run, compile_tasks, run_checks, say

MODELS = ("qwen4_exp-code4", "qwen3_moe-code8", PUBLISHED)
SHARES = 3  # processes of a model


@dataclass(frozen=True)
class GroupRun(Run):
    """The same processes with other tasks."""

    module: ClassVar[str] = "tests.gpu.groups"


def run_task(name: str, device: torch.device) -> int:
    """A share of one model's checks, in this process; how many failed."""
    model, _, cut = name.partition(":")
    share, shares = map(int, cut.split("/"))
    torch.set_num_threads(1)
    if device.type == "cuda":
        from strata.kernels.compiled import settle_keys

        settle_keys()  # what one process compiled the others find
    with Pool(THREADS.get(model, 2)) as pool:
        return run_checks(list(group_checks.checks_of(model, pool, device))[share::shares])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--kernels", type=Path, help="folder for compiled kernels; if not given one that is deleted")
    parser.add_argument("--task", nargs=2, metavar=("NAME", "FOLDER"), help="only this, in this process")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if arguments.task:
        return min(100, run_task(arguments.task[0], device))
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no NVIDIA GPU here: `--device cpu` checks the checks")
        return 2
    if not library.is_available():
        print("the C++ library was not built, and it computes the experts that are not on the card: `make native`")
        return 2
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="strata-groups-") as folder:
        kernels = (arguments.kernels or Path(folder) / "kernels").resolve()
        run = GroupRun(arguments.device, Path(folder), kernels)
        if device.type == "cuda":
            compiled = Run(arguments.device, Path(folder), kernels).tasks(compile_tasks(arguments.models))
            assert not compiled.failed, compiled.failed
            say(f"everything is compiled after {time.monotonic() - begin:.0f} s")
        found = run.tasks([f"{model}:{share}/{SHARES}" for model in arguments.models for share in range(SHARES)])
    for line in found.failed:
        say(line)
    say(f"{found.passed} checks passed, {len(found.failed)} failed")
    return min(100, len(found.failed))


if __name__ == "__main__":
    sys.exit(main())
