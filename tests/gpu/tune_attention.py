"""`python -m tests.gpu.tune_attention`: times launches of the published model's attention on this GPU, in a minute.

Choosing blocks, and attending (with the merge of parts), at 1,024 and 30,000 positions, of 1, 4 and 8 rows in slots of
their own. The launches of 32 layers are one graph whose kernels are dependents of one another, as in a window;
layers share all but their cells, which come from memory. Prints each line's candidates, best first, `*` at the current,
and last the geometric means over all lines, for few launches serve all of them (attention_rows/launches.py). What
a candidate gives must be near what the current gives; other bits are no error. `--smoke` runs each once over one layer
and times nothing.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod

import torch

from strata.kernels.attention_rows import AttentionWork, ProjectedRows, attention_prepare
from strata.kernels.attention_rows.launches import (
    ATTEND_LAUNCH,
    CHOOSE_LAUNCH,
    CROWDED_LAUNCH,
    AttendLaunch,
    ChooseLaunch,
)
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.cell_codes import CellKind
from tests.gpu.warm import compile_side_by_side
from tests.kernels.attention_cases import PUBLISHED, AttentionWindow, other_cells, random_window, window_rows

Launch = AttendLaunch | ChooseLaunch
POSITIONS = (1024, 30_000)
ROWS = (1, 4, 8)
CELLS = 31_000
LAYERS = 32  # 67 MB of cells for one row at 1,024: more than the last-level cache
REPEATS = 9

CHOOSES = (
    CHOOSE_LAUNCH,
    ChooseLaunch(tile=32, slice=32, warps=8),
    ChooseLaunch(tile=32, slice=64, warps=16, registers=64),
    ChooseLaunch(tile=64, slice=32, warps=16),
    ChooseLaunch(tile=64, slice=16, warps=8),
)
ATTENDS = (
    ATTEND_LAUNCH,
    CROWDED_LAUNCH,
    AttendLaunch(loops=True),
    AttendLaunch(registers=168),
    AttendLaunch(asks_values_early=False, registers=128),
    AttendLaunch(warps=8),
    AttendLaunch(warps=8, asks_values_early=False),
    AttendLaunch(merge_warps=1),
    AttendLaunch(merge_warps=4),
    AttendLaunch(chunk=32, least_part=32),
    AttendLaunch(chunk=32, least_part=32, asks_values_early=False),
    AttendLaunch(chunk=32),
)


@dataclass(frozen=True)
class Bench:
    """A window over the cells of several layers."""

    windows: Sequence[AttentionWindow]
    out: RowsOut

    def run(self, launch: Launch) -> None:
        """Every layer's launches of one op."""
        from strata.kernels.attention_rows.attend import attention_attend
        from strata.kernels.attention_rows.choose import attention_choose

        for one in self.windows:
            if isinstance(launch, ChooseLaunch):
                attention_choose(one.rows, one.cells, PUBLISHED, one.work, launch)
            else:
                attention_attend(one.projected, one.rows, one.cells, PUBLISHED, one.work, self.out, launch)

    def result(self, launch: Launch) -> torch.Tensor:
        """What the launches of the last layer leave: scores or attended rows."""
        self.run(launch)
        choice = self.windows[-1].work.choice
        assert self.out.plain is not None and choice is not None
        return (choice.scores if isinstance(launch, ChooseLaunch) else self.out.plain).clone()


def layers_of(rows: int, layers: int, device: torch.device, cells: int = CELLS) -> list[AttentionWindow]:
    """Windows of `rows` slots that share all but their cells."""
    segments = [(slot, 0, 1) for slot in range(rows)]
    first = random_window(PUBLISHED, segments, cells, half=32, kind=CellKind.BF16, device=device)
    found = [first]
    for _ in range(layers - 1):
        found.append(replace(first, cells=other_cells(first.cells, PUBLISHED.head_dim)))
    return found


def bench_at(windows: Sequence[AttentionWindow], rows: int, position: int) -> Bench:
    """The first slots' rows at a position; their queries are there and their blocks chosen."""
    first = windows[0]
    device = first.work.query.device
    inputs = ProjectedRows(*(None if part is None else part[:rows] for part in vars(first.projected).values()))
    row_places = window_rows([(slot, position, 1) for slot in range(rows)], 0, device)
    work = AttentionWork.empty(rows, PUBLISHED, first.cells.count, device)
    of_rows = [replace(window, projected=inputs, rows=row_places, work=work) for window in windows]
    attention_prepare(inputs, row_places, first.rotation, first.cells, first.layer, work)
    bench = Bench(of_rows, RowsOut(torch.zeros(rows, PUBLISHED.query_width, device=device), None))
    bench.run(CHOOSE_LAUNCH)
    return bench


def compile_one(launch: Launch) -> None:
    """In a process of its own: one candidate's kernels, into Triton's cache."""
    bench_at(layers_of(1, 1, torch.device("cuda")), 1, POSITIONS[-1]).run(launch)


def near_current(bench: Bench, current: Launch, launch: Launch) -> bool:
    """Whether a candidate gives what the current launch gives, within rounding; says so if it does not."""
    try:
        torch.testing.assert_close(bench.result(launch), bench.result(current), rtol=2e-5, atol=1e-5)
    except AssertionError as difference:
        print(f"    wrong: {spelled(launch)}: {str(difference).splitlines()[-2:]}", flush=True)
        return False
    return True


def spelled(launch: Launch) -> str:
    """A launch by its fields that are not the default ones."""
    given = ((field.name, getattr(launch, field.name), field.default) for field in fields(launch))
    return ", ".join(f"{name}={value}" for name, value, default in given if value != default) or "as it is made"


def timed_line(bench: Bench, candidates: Sequence[Launch], is_smoke: bool) -> dict[Launch, float]:
    """Microseconds of one layer's launches, of the candidates that give what the first one gives."""
    right = [launch for launch in candidates if near_current(bench, candidates[0], launch)]
    if is_smoke:
        return dict.fromkeys(right, 0.0)
    from tests.gpu.timing import seconds

    bench.run(CHOOSE_LAUNCH)
    return {launch: seconds([partial(bench.run, launch)], REPEATS)[0] / len(bench.windows) * 1e6 for launch in right}


def lines(windows: Sequence[AttentionWindow], is_smoke: bool) -> Iterator[tuple[str, str, dict[Launch, float]]]:
    """Op, place, and the times of its candidates."""
    ops: dict[str, Sequence[Launch]] = {"choose": CHOOSES, "attend": ATTENDS}
    for position in POSITIONS:
        for rows in ROWS:
            bench = bench_at(windows, rows, position)
            for op, candidates in ops.items():
                yield op, f"{rows} rows at {position}", timed_line(bench, candidates, is_smoke)


def means(of_lines: Sequence[dict[Launch, float]]) -> dict[Launch, float]:
    """Geometric means of the candidates that every line has."""
    everywhere = [launch for launch in of_lines[0] if all(launch in line for line in of_lines)]
    return {launch: prod(line[launch] for line in of_lines) ** (1 / len(of_lines)) for launch in everywhere}


def report(title: str, times: dict[Launch, float]) -> None:
    """Candidates of a line, best first."""
    print(title)
    for launch in sorted(times, key=lambda launch: times[launch]):
        mark = "*" if launch in (ATTEND_LAUNCH, CROWDED_LAUNCH, CHOOSE_LAUNCH) else " "
        print(f"    {times[launch]:7.2f} us {mark}{spelled(launch)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=50.0, help="no new line is timed after these")
    parser.add_argument("--smoke", action="store_true", help="runs every candidate once and times nothing")
    options = parser.parse_args()
    start = time.monotonic()
    jobs: list[Callable[[], None]] = [partial(compile_one, launch) for launch in (*ATTENDS, *CHOOSES)]
    for sentence in compile_side_by_side(jobs):
        print(f"does not compile: {sentence}", flush=True)
    print(f"[{time.monotonic() - start:5.1f} s] compiled", flush=True)
    windows = layers_of(max(ROWS), 1 if options.smoke else LAYERS, torch.device("cuda"))
    found: dict[str, list[dict[Launch, float]]] = {}
    for op, place, times in lines(windows, options.smoke):
        report(f"[{time.monotonic() - start:5.1f} s] {op}, {place}", times)
        found.setdefault(op, []).append(times)
        if time.monotonic() - start > options.seconds:
            print("the time is over")
            break
    for op, of_lines in found.items():
        report(f"{op}: geometric means of {len(of_lines)} lines", means(of_lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
