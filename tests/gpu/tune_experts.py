"""`python -m tests.gpu.tune_experts`: times launches of the routed experts' two kernels on this GPU, in 100 seconds.

Ten experts of one row; windows of 4 and 8 rows that choose 10 of 512 at random, and that all choose the same ten.
Weights come from memory, and kernels are dependents of one another, as in a window. Prints each line's candidates, best
first, `*` at the table's: gate, up and hidden alone, down alone (with the shared expert's, of 8 bits), then the best of
both, for down's programs begin while gate's and up's end. Whether the bits are right is the gate's question.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial

import torch

from strata.kernels.configurations import expert_launch
from strata.kernels.expert_rows import ExpertBuffers, SharedExpert
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.launch_shapes import LaunchShape, dp4a_launch, listed_launch
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.rows_out import RowsOut
from tests.gpu.warm import compile_side_by_side
from tests.gpu.weights import HIDDEN, KIND, WIDTH, blob_layout, random_blobs, random_dense
from tests.gpu.window_ops.expert_rows import with_all_entries
from tests.kernels.joined_cases import filled
from tests.kernels.random_matrices import work_on

CLOCK = time.monotonic()
RANKS, SEATS = 10, 512
CACHE_BYTES = 128 << 20  # what is read of down's weights in one graph: more than the last-level cache holds
REPEATS = 9
BEST = 3  # of each part, that are timed together
Pair = tuple[LaunchShape | None, LaunchShape | None]  # of gate, up and hidden, and of down

GATES_OF_ONE = (
    dp4a_launch(1, 1, 2, 128),
    dp4a_launch(1, 1, 5, 168),
    dp4a_launch(1, 2, 5, 128),
)
DOWNS_OF_ONE = (
    dp4a_launch(1, 1, 2, 128),
    dp4a_launch(1, 1, 3, 128),
    listed_launch(1, 1, 3, 128, tiles=4),
    listed_launch(1, 2, 3, 96, tiles=2),
)
GATES_OF_MORE = (
    listed_launch(4, 1, 1, 128, alone=2),
    listed_launch(2, 1, 1, 128, alone=2),
    listed_launch(2, 1, 2, 128, alone=2),
)
DOWNS_OF_MORE = (
    listed_launch(4, 1, 1, 128, alone=3),
    listed_launch(4, 1, 1, 128, alone=3, tiles=4),
    listed_launch(2, 1, 1, 96, alone=3, tiles=4),
)


@dataclass(frozen=True)
class Line:
    """Windows of `rows` rows of experts in the code of a kind; `is_shared`: all rows choose the same ten."""

    kind: str
    rows: int
    is_shared: bool = False

    @property
    def name(self) -> str:
        """What is timed."""
        if self.rows == 1:
            return f"{self.kind}, 1 row of ten experts"
        return f"{self.kind}, {self.rows} rows, {'the same ten experts' if self.is_shared else 'ten of 512 each'}"

    @property
    def gates(self) -> tuple[LaunchShape, ...]:
        """Candidates for gate, up and hidden."""
        return GATES_OF_ONE if self.rows == 1 else GATES_OF_MORE

    @property
    def downs(self) -> tuple[LaunchShape, ...]:
        """Candidates for down."""
        return DOWNS_OF_ONE if self.rows == 1 else DOWNS_OF_MORE

    def tables(self, device: str) -> tuple[LaunchShape, LaunchShape]:
        """What the table of a device has for gate and for down."""
        layout = blob_layout(self.kind, self.kind)
        return (
            expert_launch(device, layout.gate, self.rows, is_in_place=False),
            expert_launch(device, layout.down, self.rows, is_in_place=False, is_down=True),
        )

    @property
    def windows(self) -> int:
        """How many read past the cache."""
        fewest = RANKS if self.is_shared else RANKS + (self.rows - 1) * RANKS // 2
        return CACHE_BYTES // (fewest * blob_layout(self.kind, self.kind).down.total_bytes) + 1

    def choices(self, seats: int) -> torch.Tensor:
        """Experts of one window [rows, RANKS]."""
        if self.is_shared:
            return torch.randperm(seats)[:RANKS].expand(self.rows, -1)
        return torch.stack([torch.randperm(seats)[:RANKS] for _ in range(self.rows)])


LINES = (Line("q4_0", 1), Line("q4_0", 4), Line("q4_0", 8), Line("q4_0", 4, True), Line("q4_0", 8, True))
CONFIRMED = (Line("q8_0", 1), Line("q8_0", 8))  # timed with the best launches of the same rows of LINES alone


@dataclass(frozen=True)
class Bench:
    """Windows over other experts each, and the memory that they share."""

    blobs: ExpertBlobs
    windows: list[tuple[ExpertWork, SharedExpert]]
    x: RowsOut
    buffers: ExpertBuffers

    @classmethod
    def of_line(cls, line: Line, blobs: ExpertBlobs, device: torch.device, count: int) -> "Bench":
        """`count` windows of a line."""
        shared_down, gate_up = KIND["q8_0"].layout(HIDDEN, WIDTH), torch.randn(line.rows, 2 * WIDTH, device=device)
        works = [with_all_entries(work_on(device, line.choices(blobs.seats)), line.rows) for _ in range(count)]
        return cls(
            blobs,
            [(work, SharedExpert(gate_up, random_dense(shared_down))) for work in works],
            filled(torch.randn(line.rows, HIDDEN, device=device), room_for([blobs.layout.gate], line.rows, device)),
            ExpertBuffers.empty(blobs.layout, line.rows, RANKS, device, shared_down),
        )

    def run(self, pair: Pair) -> None:
        """Every window's launches of gate, up and hidden, of down, or of both."""
        from strata.kernels.expert_rows.gate_up_hidden import gate_up_hidden_into
        from strata.kernels.expert_rows.window import down_into

        gate, down = pair
        for work, shared in self.windows:
            if gate is not None:
                gate_up_hidden_into(self.blobs, work, self.x, self.buffers, shared, gate)
            if down is not None:
                down_into(self.blobs, work, self.buffers, shared, down)


def spelled(launch: LaunchShape) -> str:
    """A launch in a few characters."""
    alone = "" if launch.alone is None else f"/{launch.alone}"
    parts = [f"r{launch.rows}", f"w{launch.warps}", f"u{launch.unroll}{alone}", str(launch.registers)]
    return " ".join(parts + [f"t{launch.tiles}"] * (launch.tiles > 1))


def kernels(device: str) -> list[tuple[Line, Pair]]:
    """Each kernel of LINES once. Down's holds the shared expert's launch too, which the rows decide."""
    jobs: dict[tuple[int, Pair], tuple[Line, Pair]] = {}
    for line in LINES:
        gate, down = line.tables(device)
        for first in (gate, *line.gates):
            jobs[0, (first, None)] = line, (first, None)
        for second in (down, *line.downs):
            jobs[line.rows, (None, second)] = line, (None, second)
    return list(jobs.values())


def run_once(line: Line, pair: Pair) -> None:
    """A window of a line over few experts, to compile its kernels."""
    blobs = random_blobs(blob_layout(line.kind, line.kind), RANKS)
    Bench.of_line(line, blobs, torch.device("cuda"), 1).run(pair)


def timed(bench: Bench, pairs: list[Pair], current: Pair, name: str) -> list[Pair]:
    """Prints the pairs, best first, with the microseconds of one window; returns them in this order."""
    from tests.gpu.timing import seconds

    found = []
    for pair in dict.fromkeys(pairs):
        one = seconds([partial(bench.run, pair)], REPEATS)[0] / len(bench.windows)
        found.append((one * 1e6, pair))
    found.sort(key=lambda each: each[0])
    print(f"[{time.monotonic() - CLOCK:5.1f} s] {name}")
    for microseconds, pair in found:
        mark = "*" if pair == current else " "
        print(f"    {microseconds:7.2f} us {mark}{', '.join(spelled(each) for each in pair if each)}", flush=True)
    return [pair for _, pair in found]


def time_line(line: Line, bench: Bench, current: Pair) -> Pair:
    """One line's three parts; returns the best pair."""
    gate, down = current
    gates = timed(bench, [(each, None) for each in (gate, *line.gates)], (gate, None), f"{line.name}: gate, up, hidden")
    downs = timed(bench, [(None, each) for each in (down, *line.downs)], (None, down), f"{line.name}: down")
    both = [current, *((first, second) for first, _ in gates[:BEST] for _, second in downs[:BEST])]
    return timed(bench, both, current, f"{line.name}: both")[0]


def time_lines(device: torch.device, name: str, most_seconds: float, seats: int = SEATS) -> None:
    """LINES, then CONFIRMED with what was best there; no new line after `most_seconds`."""
    best: dict[int, Pair] = {}
    blobs = {kind: random_blobs(blob_layout(kind, kind), seats) for kind in {line.kind for line in LINES + CONFIRMED}}
    for line in LINES + CONFIRMED:
        if time.monotonic() - CLOCK > most_seconds:
            print(f"the time is over before {line.name}")
            return
        bench, current = Bench.of_line(line, blobs[line.kind], device, line.windows), line.tables(name)
        if line in CONFIRMED:
            timed(bench, [current, best[line.rows]], current, f"{line.name}: both")
        else:
            best.setdefault(line.rows, time_line(line, bench, current))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="no new line is timed after these")
    options = parser.parse_args()
    name = torch.cuda.get_device_name()
    for sentence in compile_side_by_side([partial(run_once, *job) for job in kernels(name)]):
        print(f"does not compile: {sentence}")
    print(f"[{time.monotonic() - CLOCK:5.1f} s] compiled", flush=True)
    time_lines(torch.device("cuda"), name, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
