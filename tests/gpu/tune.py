"""`python -m tests.gpu.tune --out DIR`: times candidate launches at the published shapes on this GPU, in two minutes.

Prints them best first and writes `measured.txt`: the lines of this device for `strata/kernels/measured.py`. Whether the
bits are right is the gate's question (`python -m tests.gpu.kernels`), not this one's.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path

import torch

from strata.kernels.launch_shapes import ROW_BUCKETS, LaunchShape, ShapeClass
from tests.gpu.candidates import (
    EXPERT_KINDS,
    Line,
    dense_candidates,
    dense_kernels,
    dense_lines,
    expert_candidates,
    expert_kernels,
    spelled,
)

CLOCK = time.monotonic()
REPEATS = 9
ALIKE = 0.94
SEATS = 512
IN_PLACE_ROWS = (1, 8)


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.monotonic() - CLOCK:6.1f} s] {text}", flush=True)


def in_place_kernels() -> list[LaunchShape]:
    """Each kernel of experts in pinned memory once."""
    return list(dict.fromkeys(launch for rows in IN_PLACE_ROWS for launch in expert_candidates(rows)))


def compile_all() -> None:
    """All candidates, so that the times hold no compilation."""
    from tests.gpu.warm import compile_side_by_side, run_dense, run_part

    jobs: list[Callable[[], None]] = [partial(run_dense, kind, launch) for kind, launch in dense_kernels()]
    jobs += [partial(run_part, (kind, kind), "gate+up", launch) for kind, launch in expert_kernels()]
    jobs += [partial(run_part, ("q4_0", "q4_0"), "gate+up", launch, True) for launch in in_place_kernels()]
    for sentence in compile_side_by_side(jobs):
        say(f"does not compile: {sentence}")


@dataclass(frozen=True)
class Timed:
    """One candidate at some shapes of a line."""

    line: Line
    launch: LaunchShape
    gb_per_s: tuple[float, ...]
    shared: tuple[float, ...] = ()  # experts: where all rows choose the same ones


def experts_timed() -> Iterator[Timed]:
    """Gate and up, and down: of 10 and 40 experts for one row; for more, of windows, and of 40 experts of all rows."""
    from tests.gpu.benches import Bench
    from tests.gpu.weights import blob_layout, random_blobs

    for kind in EXPERT_KINDS:
        blobs = random_blobs(blob_layout(kind, kind), SEATS)
        for rows in ROW_BUCKETS:
            one = [Bench.all_rows(blobs, 10), Bench.all_rows(blobs, 40)]
            benches = one if rows == 1 else [Bench.routed(blobs, rows)]
            together = [] if rows == 1 else [Bench.all_rows(blobs, 40, rows)]
            for launch in expert_candidates(rows):
                rates, shared = (_rates(each, ("gate+up", "down"), launch) for each in (benches, together))
                yield Timed(Line(ShapeClass.EXPERTS, kind, rows), launch, rates, shared)
        del blobs, one, benches, together


def in_place_timed() -> Iterator[Timed]:
    """Gate and up of windows whose experts lie in pinned memory."""
    from strata.kernels.expert_rows.work import ExpertBlobs
    from tests.gpu.benches import Bench
    from tests.gpu.weights import blob_layout, random_blobs

    layout = blob_layout("q4_0", "q4_0")
    made = random_blobs(layout, 160)
    pinned = torch.empty(made.memory.shape, dtype=torch.uint8, pin_memory=True).copy_(made.memory)
    blobs = ExpertBlobs.in_place(layout, pinned, torch.device("cuda"))
    for rows in IN_PLACE_ROWS:
        bench = Bench(blobs, Bench.routed(blobs, rows).choices[:2])
        for launch in expert_candidates(rows):
            yield Timed(Line(ShapeClass.IN_PLACE, "q4_0", rows), launch, _rates([bench], ("gate+up",), launch))


def _rates(benches: list, parts: tuple[str, ...], launch: LaunchShape) -> tuple[float, ...]:
    from tests.gpu.timing import seconds

    found = [bench.calls(part, launch) for part in parts for bench in benches]
    return tuple(calls.read / seconds(calls.functions, REPEATS)[0] / 1e9 for calls in found)


def dense_timed() -> Iterator[Timed]:
    """Matrices whose weights come from memory, not from the cache."""
    from tests.gpu.benches import DenseBench
    from tests.gpu.timing import seconds
    from tests.gpu.weights import KIND

    bench = None
    for line, outputs, columns in dense_lines():
        layout = KIND[line.kind].layout(outputs, columns)
        if bench is None or bench.layout != layout:
            bench = DenseBench(layout)
        for launch in dense_candidates(line.rows, layout.code.is_float):
            calls = bench.calls(line.rows, launch)
            yield Timed(line, launch, (calls.read / seconds(calls.functions, REPEATS)[0] / 1e9,))


def best_of(found: list[Timed]) -> list[Timed]:
    """Candidates of one line, best first, by the geometric mean: no shape is given up for another.

    Experts' launches within 6 % of the best in random windows are alike: first of them comes the best where all rows
    choose the same experts, for real windows are something between.
    """
    order = sorted(found, key=lambda timed: -mean(timed.gb_per_s))
    ties = [timed for timed in order if mean(timed.gb_per_s) >= ALIKE * mean(order[0].gb_per_s)]
    first = max(ties, key=lambda timed: mean(timed.shared)) if order[0].shared else order[0]
    return [first, *(timed for timed in order if timed is not first)]


def mean(rates: tuple[float, ...]) -> float:
    """The geometric mean."""
    return prod(rates) ** (1 / len(rates))


def joined(found: list[Timed]) -> dict[Line, list[Timed]]:
    """The candidates of each line, those of several sizes made one."""
    groups: dict[Line, dict[LaunchShape, Timed]] = {}
    for each in found:
        of_line = groups.setdefault(each.line, {})
        before = of_line.get(each.launch)
        rates = each.gb_per_s if before is None else before.gb_per_s + each.gb_per_s
        of_line[each.launch] = Timed(each.line, each.launch, rates, each.shared)
    return {line: list(of_line.values()) for line, of_line in groups.items()}


def report(found: list[Timed], most: int) -> list[str]:
    """The best candidates of every line, printed; the table's entries of the classes that are complete."""
    classes: dict[str, list[str]] = {}
    for line, candidates in joined(found).items():
        order = best_of(candidates)
        classes.setdefault(line.key, []).append(spelled(order[0].launch))
        print(f"{line.shape.value} {line.kind} {line.rows} rows")
        for timed in order[:most]:
            rates = " ".join(f"{rate:5.0f}" for rate in (*timed.gb_per_s, *timed.shared))
            print(f"  {spelled(timed.launch):28} {rates}")
    whole = {key: launches for key, launches in classes.items() if len(launches) == len(ROW_BUCKETS)}
    return [f"        {key}: ({', '.join(launches)})," for key, launches in whole.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder for measured.txt and tune.json")
    parser.add_argument("--best", type=int, default=3, help="candidates printed a line")
    parser.add_argument("--seconds", type=float, default=170.0, help="no new candidate is timed after these")
    options = parser.parse_args()
    compile_all()
    say("compiled")
    found: list[Timed] = []
    options.out.mkdir(parents=True, exist_ok=True)
    for source in (experts_timed(), dense_timed(), in_place_timed()):
        for timed in source:
            found.append(timed)
            if time.monotonic() - CLOCK > options.seconds:
                say("the time is over")
                break
        say(f"{len(found)} candidates timed")
    written = [asdict(each) | {"line": each.line.key} for each in found]
    (options.out / "tune.json").write_text(json.dumps(written))
    lines = [f'    "{torch.cuda.get_device_name()}": {{', *report(found, options.best), "    },"]
    (options.out / "measured.txt").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
