"""`python -m tests.gpu.tune_few`: times launches of a decode window's dense matrices on this GPU, in about a minute.

All candidates are compiled first, by processes side by side; `--only` and `--rows` choose among the lines. Weights come
from memory: copies of a chain's matrices in one graph, whose kernels are dependents of one another, as in a window.
Prints each line's candidates, best first, `*` at the table's, and last the entries of `strata/kernels/measured.py`
where one beats the table by more than 3 %. Whether the bits are right is the gate's question. `--smoke` runs each once
over one copy and times nothing.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch

from strata.kernels.compiled import noting_compilations
from strata.kernels.launch_shapes import ROW_BUCKETS, LaunchShape, ShapeClass, WeightClass
from strata.kernels.measured import MEASURED
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.packed import PackedMatrix
from tests.gpu.candidates import spelled
from tests.gpu.chain_candidates import CHAINS, TIMED_ROWS, Chain, Launches, candidates, kernels, lines
from tests.gpu.warm import compile_side_by_side, run_chain
from tests.gpu.weights import random_dense
from tests.kernels.joined_cases import filled

CACHE_BYTES = 128 << 20
MOST_COPIES = 40
LEAST_CALLS = 16  # of one graph, whose replay has a start of its own
REPEATS = 11
WORTH = 0.97  # of the table's time: less is a better entry
Key = tuple[ShapeClass, WeightClass]
Times = Mapping[tuple[Key, int], Mapping[LaunchShape, list[float]]]  # entry and rows: microseconds, one a chain


@dataclass(frozen=True)
class Trial:
    """One candidate of a chain at some rows, as a call of all copies."""

    launches: Launches
    call: Callable[[], None]

    def __str__(self) -> str:
        return ", ".join(map(spelled, self.launches))


def copies_of(chain: Chain, is_smoke: bool) -> list[list[PackedMatrix]]:
    """Enough of them that none is read from the cache."""
    layouts = chain.layouts(64 if is_smoke else None)
    size = sum(layout.total_bytes for layout in layouts)
    count = 1 if is_smoke else min(MOST_COPIES, CACHE_BYTES // size + 2)
    copies = [[random_dense(layout) for layout in layouts] for _ in range(count)]
    return copies if is_smoke else copies * max(1, LEAST_CALLS // count)


def trials(copies: list[list[PackedMatrix]], chain: Chain, rows: int, device: torch.device, name: str) -> list[Trial]:
    """All candidates, the table's first."""
    layouts = [matrix.layout for matrix in copies[0]]
    out = torch.empty(rows, sum(layout.rows for layout in layouts), device=device)
    x = torch.randn(rows, chain.columns, device=device)
    found = []
    for launches in candidates(chain, name, rows):
        room = filled(x, room_for(layouts, rows, device, launch=launches[-1]))
        found.append(Trial(launches, partial(_all, copies, room, out, launches)))
    return found


def _all(copies: list[list[PackedMatrix]], x: RowsOut, out: torch.Tensor, launches: Launches) -> None:
    from strata.kernels.packed_rows import joined

    for matrices in copies:
        joined.multiply_into(matrices, x, out, launches)


def prepared(
    wanted: Sequence[tuple[Chain, int]], device: torch.device, name: str, is_smoke: bool = False
) -> Iterator[tuple[Chain, int, list[Trial], int]]:
    """Chain, rows, candidates and the launches of each call; neighbours of one chain share its copies."""
    before: Chain | None = None
    for chain, rows in wanted:
        if chain != before:
            copies, before = copies_of(chain, is_smoke), chain
        yield chain, rows, trials(copies, chain, rows, device, name), len(copies)


def compile_all(name: str, wanted: Sequence[tuple[Chain, int]]) -> None:
    """All candidates, so that the times hold no compilation."""
    for sentence in compile_side_by_side([partial(run_chain, *kernel) for kernel in kernels(name, wanted)]):
        print(f"does not compile: {sentence}", flush=True)


def better_entries(device: str, times: Times) -> list[str]:
    """Entries of the device's table with every launch replaced that a candidate beats by more than 3 %.

    Where an entry stands for several chains, by the geometric mean over those that all of its candidates were timed on.
    """
    found = []
    for key in dict.fromkeys(key for key, _ in times):
        entry = [f"            {spelled(launch)}," for launch in MEASURED[device][key]]
        changed = False
        for number, rows in enumerate(ROW_BUCKETS):
            of_rows = times.get((key, rows), {})
            table = of_rows.get(MEASURED[device][key][number])
            if table is None:
                continue
            rates = {launch: _ratio(each, table) for launch, each in of_rows.items() if len(each) == len(table)}
            best = min(rates, key=lambda launch: rates[launch])
            if rates[best] < WORTH:
                changed = True
                before, after = (" and ".join(f"{us:.2f}" for us in each) for each in (table, of_rows[best]))
                entry[number] = f"            {spelled(best)},  # {rows} rows: {before} -> {after} us"
        if changed:
            shape, weights = key
            found += [f"        (ShapeClass.{shape.name}, WeightClass.{weights.name}): (", *entry, "        ),"]
    return found


def _ratio(found: list[float], table: list[float]) -> float:
    return prod(ours / theirs for ours, theirs in zip(found, table, strict=True)) ** (1 / len(table))


def time_lines(wanted: Sequence[tuple[Chain, int]], name: str, start: float, most_seconds: float) -> Times:
    """Prints each line's candidates with their microseconds, best first; no new line `most_seconds` after `start`."""
    times: dict[tuple[Key, int], dict[LaunchShape, list[float]]] = {}
    for chain, rows, found, calls in prepared(wanted, torch.device("cuda"), name):
        if time.monotonic() - start > most_seconds:
            print(f"the time is over before {chain}, {rows} rows")
            break
        print(f"[{time.monotonic() - start:5.1f} s] {chain}, {rows} rows", flush=True)
        microseconds = _timed(found, calls)
        for trial in sorted(microseconds, key=lambda trial: microseconds[trial]):
            mark = "*" if trial is found[0] else " "
            print(f"    {microseconds[trial]:7.2f} us {mark}{trial}", flush=True)
            own = times.setdefault((chain.entry, rows), {})
            # A pair's candidate is the launch of its first matrix, but the table's stays what the table says.
            launch = MEASURED[name][chain.entry][ROW_BUCKETS.index(rows)] if mark == "*" else trial.launches[0]
            own.setdefault(launch, []).append(microseconds[trial])
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=110.0, help="no new line is timed after these")
    parser.add_argument("--smoke", action="store_true", help="runs every candidate once and times nothing")
    parser.add_argument("--only", nargs="+", choices=[chain.name for chain in CHAINS], help="no other chains")
    parser.add_argument("--rows", nargs="+", type=int, choices=TIMED_ROWS, help="no other rows")
    options = parser.parse_args()
    start, name = time.monotonic(), torch.cuda.get_device_name()
    wanted = lines(options.only, options.rows)
    compile_all(name, wanted)
    print(f"[{time.monotonic() - start:5.1f} s] compiled", flush=True)
    with noting_compilations() as noted:
        times = _run_once(wanted, name) if options.smoke else time_lines(wanted, name, start, options.seconds)
    if noted.compiled:
        print(f"compiled again, by this process: {len(noted.compiled)} kernels")
    if not options.smoke:
        print("better entries of measured.py (a router's beside what the table then had for [1280, 2560]):")
        print("\n".join(better_entries(name, times)) or "        none")
    return bool(noted.compiled)


def _run_once(wanted: Sequence[tuple[Chain, int]], name: str) -> Times:
    """Every candidate, and no times."""
    for _, _, found, _ in prepared(wanted, torch.device("cuda"), name, is_smoke=True):
        for trial in found:
            trial.call()
    torch.cuda.synchronize()
    return {}


def _timed(found: list[Trial], calls: int) -> dict[Trial, float]:
    """Microseconds of one launch of each."""
    from tests.gpu.timing import seconds

    return {trial: seconds([trial.call], REPEATS)[0] / calls * 1e6 for trial in found}


if __name__ == "__main__":
    sys.exit(main())
