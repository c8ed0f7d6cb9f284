"""`python -m tests.gpu.tune_few`: times launches of matrices of few tiles and of ten experts on this GPU.

Weights come from memory: many copies in one graph, whose kernels are dependents of one another, as in a window. Prints
each line's candidates, best first, `*` at the table's. Whether the bits are right is the gate's question.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from strata.kernels.configurations import joined_launches, packed_launch
from strata.kernels.launch_shapes import LaunchShape, dp4a_launch, few_launch, matrix_launch
from strata.kernels.packed_rows import room_for
from strata.quant.layout import MatrixLayout
from strata.quant.packed import PackedMatrix
from tests.gpu.weights import HIDDEN, KIND, blob_layout, random_blobs, random_dense
from tests.kernels.joined_cases import filled

ROWS = (1, 4, 8, 32)
MATRICES = (
    ("q8_0", 324, 10240),
    ("q4_0", 324, 10240),
    ("f32", 512, 2560),
    ("bf16", 512, 2560),
    ("q8_0", 512, 2560),
    ("q8_0", 2560, 6144),
    ("q8_0", 16480, 2560),
)
PAIR = (("f32", 512), ("q8_0", 1280))
EXPERTS, SEATS = 10, 400
CACHE_BYTES = 128 << 20
MOST_COPIES = 40
REPEATS = 7
Line = tuple[str, list[tuple[str, Callable[[], object]]], int]  # name, candidates, calls of each


def dense_candidates(rows: int, is_float: bool) -> list[LaunchShape]:
    """Launches worth timing for this many rows."""
    few = min(rows, 8)
    if is_float:
        unrolls = ((4, 1, 16), (8, 4, 16), (8, 4, 32), (4, 2, 32), (4, 2, 40)) if rows == 1 else ((4, 2, 8), (8, 4, 8))
        found = [few_launch(few, outputs, 1, warps, unroll, 255) for outputs, warps, unroll in unrolls]
        return [*found, dp4a_launch(few, 4, 8, 128), dp4a_launch(few, 4, 8, 128, prefetches=True)]
    if rows == 1:
        found = [few_launch(1, 8, 4, 8, 5, 255), few_launch(1, 8, 4, 8, 2, 255), few_launch(1, 4, 4, 4, 5, 255)]
        found += [few_launch(1, 8, 2, 4, 5, 255), few_launch(1, 8, 1, 2, 8, 255), few_launch(1, 16, 1, 4, 8, 255)]
        return [*found, dp4a_launch(1, 4, 4, 96), dp4a_launch(1, 4, 4, 96, prefetches=True)]
    units = [matrix_launch(8, 4, 128, asks) for asks in (False, True)]
    if rows > 8:
        return [*units, *(matrix_launch(16, 2, 128, asks) for asks in (False, True))]
    return [*units, few_launch(4, 8, 4, 8, 1, 255), few_launch(4, 8, 2, 4, 2, 255), few_launch(2, 8, 4, 8, 2, 255)]


def pair_candidates(rows: int) -> list[tuple[LaunchShape, LaunchShape]]:
    """The same for a router beside the shared expert's gate and up."""
    if rows > 1:
        router = few_launch(min(rows, 8), 8, 1, 8, 8, 128)
        units = matrix_launch(8, 4, 128)
        return [(router, units), (replace(router, prefetches=False), units), (dp4a_launch(4, 8, 4, 128), units)]
    routers = [few_launch(1, 8, 1, 4, 32, 255), few_launch(1, 8, 1, 4, 16, 168), few_launch(1, 4, 1, 4, 32, 255)]
    shared = [dp4a_launch(1, 4, 4, 255, True), few_launch(1, 8, 2, 4, 5, 255)]
    return [(first, replace(second, registers=first.registers)) for first in routers for second in shared]


def expert_candidates() -> list[LaunchShape]:
    """For gate, up and hidden, and for down, of a few experts of one row."""
    shapes = ((1, 1, None), (1, 2, 128), (1, 2, 168), (1, 3, 128), (1, 3, 255), (1, 4, 128), (2, 2, 96), (2, 3, 128))
    return [dp4a_launch(1, *shape) for shape in (*shapes, (2, 5, 96), (2, 5, 128))]


def spelled(launch: LaunchShape) -> str:
    """A launch in a few characters."""
    unit = "units" if launch.uses_matrix_units else f"o{launch.outputs} s{launch.side}"
    asks = " asks" if launch.prefetches else ""
    return f"r{launch.rows} {unit} w{launch.warps} u{launch.unroll} {launch.registers}{asks}"


def copies_of(layouts: list[MatrixLayout], is_smoke: bool) -> list[list[PackedMatrix]]:
    """Enough of them that none is read from the cache."""
    size = sum(layout.total_bytes for layout in layouts)
    count = 1 if is_smoke else min(MOST_COPIES, CACHE_BYTES // size + 2)
    return [[random_dense(layout) for layout in layouts] for _ in range(count)]


def matrix_lines(device: torch.device, name: str, is_smoke: bool) -> Iterator[Line]:
    """Single matrices, then the pair."""
    from strata.kernels.packed_rows import joined

    sets = [[KIND[kind].layout(outputs, columns)] for kind, outputs, columns in MATRICES]
    for layouts in [*sets, [KIND[kind].layout(outputs, HIDDEN) for kind, outputs in PAIR]]:
        copies = copies_of(layouts, is_smoke)
        for rows in ROWS:
            if len(layouts) == 1:
                current = (packed_launch(name, layouts[0], rows),)
                others = [(launch,) for launch in dense_candidates(rows, layouts[0].code.is_float)]
            else:
                current, others = tuple(joined_launches(name, layouts, rows)), pair_candidates(rows)
            out = torch.empty(rows, sum(layout.rows for layout in layouts), device=device)
            found = []
            for launches in dict.fromkeys([current, *others]):
                integer = [n for n, layout in enumerate(layouts) if not layout.code.is_float]
                order = launches[integer[0]] if integer else None
                room = room_for(layouts, rows, device, launch=order)
                x = filled(torch.randn(rows, layouts[0].columns, device=device), room)
                call = partial(_all, joined.multiply_into, copies, x, out, launches)
                mark = "*" if launches == current else " "
                found.append((mark + ", ".join(map(spelled, launches)), call))
            sizes = " + ".join(f"{layout.code.value} {layout.rows} x {layout.columns}" for layout in layouts)
            yield f"{sizes}, {rows} rows", found, len(copies)


def _all(multiply: Callable, copies: list[list[PackedMatrix]], x: object, out: torch.Tensor, launches: tuple) -> None:
    for matrices in copies:
        multiply(matrices, x, out, launches)


def expert_lines(device: torch.device, is_smoke: bool) -> Iterator[Line]:
    """Ten experts of one row: gate, up and hidden in one launch, and down."""
    from strata.kernels.expert_rows import ExpertBuffers, triton
    from strata.kernels.expert_rows.gate_up_hidden import gate_up_hidden_into
    from tests.kernels.random_matrices import work_on

    blobs = random_blobs(blob_layout("q4_0", "q4_0"), 12 if is_smoke else SEATS)
    groups = torch.randperm(blobs.seats)[: blobs.seats // EXPERTS * EXPERTS].reshape(-1, 1, EXPERTS)
    works = [work_on(device, choices) for choices in groups]
    x = filled(torch.randn(1, HIDDEN, device=device), room_for([blobs.layout.gate], 1, device))
    buffers = ExpertBuffers.empty(blobs.layout, 1, EXPERTS, device, None)
    out = buffers.by_rank.view(EXPERTS, -1)

    def down(launch: LaunchShape) -> None:
        for work in works:
            task = triton.MatrixTask((triton.DOWN,), buffers.hidden.quantized, work.places, out)
            triton.run_matrix(blobs, work, task, launch)

    def gate_up_hidden(launch: LaunchShape) -> None:
        for work in works:
            gate_up_hidden_into(blobs, work, x, buffers, None, launch)

    current = triton.launch_for(blobs, works[0], blobs.layout.gate)
    for part, run in (("gate+up+hidden", gate_up_hidden), ("down", down)):
        launches = dict.fromkeys([current, *expert_candidates()])
        named = [(("*" if each == current else " ") + spelled(each), partial(run, each)) for each in launches]
        yield f"10 experts in code4: {part}, 1 row", named, len(works)


def lines(device: torch.device, name: str, is_smoke: bool = False) -> Iterator[Line]:
    """All lines; `is_smoke`: one small copy of everything, to compile it."""
    yield from matrix_lines(device, name, is_smoke)
    yield from expert_lines(device, is_smoke)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="no new line is timed after these")
    options = parser.parse_args()
    from tests.gpu.timing import seconds

    start = time.monotonic()
    for name, candidates, calls in lines(torch.device("cuda"), torch.cuda.get_device_name()):
        if time.monotonic() - start > options.seconds:
            print(f"the time is over before {name}")
            break
        timed = sorted((seconds([call], REPEATS)[0] / calls * 1e6, what) for what, call in candidates)
        print(f"[{time.monotonic() - start:5.1f} s] {name}")
        for microseconds, what in timed:
            print(f"    {microseconds:7.2f} us {what}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
