"""One share of the window checks in a process of its own: `python -m tests.gpu.window_worker TASK FILE FIRST`.

A task is `op:NAME:SHARE/SHARES` (cases of tests/gpu/window_ops/NAME.py) or `stage:MODEL:SHARE/SHARES` (every launch of
a model's buckets, once, so that it is compiled and known to run). Writes a line of JSON before and after each step, so
that whoever started it knows what a process died of; ends itself after an error that leaves a card unusable.
"""

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

import torch

from strata.engine.graphs import wanted_graphs
from strata.kernels.compiled import settle_keys
from tests.gpu.window_models import CUDA, new_stage

OUT_OF_ORDER = 3  # exit code: the card gives nothing but errors to this process now
MOST_TEXT = 6000  # characters of a traceback
Step = tuple[str, Callable[[], None]]


def steps_of(task: str) -> Iterable[Step]:
    """The steps of a task; a share is a run of neighbours, which are often of the same kernels."""
    kind, name, cut = task.split(":")
    share, shares = map(int, cut.split("/"))
    if kind == "stage":
        return list(stage_steps(name, share, shares))
    module = importlib.import_module(f"tests.gpu.window_ops.{name}")
    cases = list(module.cases(CUDA))
    return cases[len(cases) * share // shares : len(cases) * (share + 1) // shares]


def stage_steps(model: str, share: int, shares: int) -> Iterator[Step]:
    """Every launch of a share of a model's variants and buckets, each once a kind of layer."""
    stage = new_stage(model, CUDA)
    for variant, bucket in wanted_graphs(stage)[share::shares]:
        known: set[tuple[str, str]] = set()
        for launch in stage.launches(variant, bucket):
            if (launch.kind, launch.step) not in known:
                known.add((launch.kind, launch.step))
                yield f"{model}, {bucket} rows, {launch.kind}: {launch.step}", launch.run


def run_steps(steps: Iterable[Step], first: int, out: TextIO) -> int:
    """Run the steps from number `first` on; the exit code."""
    for number, (name, run) in enumerate(steps):
        if number < first:
            continue
        write(out, number=number, name=name)
        try:
            run()
            torch.cuda.synchronize()
        except Exception as reason:
            write(out, number=number, name=name, failed=traceback.format_exc()[-MOST_TEXT:])
            if leaves_card_unusable(reason):
                return OUT_OF_ORDER
        else:
            write(out, number=number, name=name, passed=True)
    write(out, ended=True)
    return 0


def leaves_card_unusable(reason: Exception) -> bool:
    """Whether everything after this error fails too."""
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device=CUDA).item()
    except Exception:
        return True
    return isinstance(reason, torch.AcceleratorError)


def write(out: TextIO, **values: object) -> None:
    """One line, at once."""
    out.write(json.dumps(values) + "\n")
    out.flush()


def main() -> int:
    task, file, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    settle_keys()
    with file.open("a") as out:
        try:
            steps = steps_of(task)
        except Exception:
            write(out, number=-1, name=task, failed=traceback.format_exc()[-MOST_TEXT:])
            write(out, ended=True)
            return 0
        return run_steps(steps, first, out)


if __name__ == "__main__":
    sys.exit(main())
