"""Speeds of the kernels as the product launches them, each beside its floor. Knows no gate and no candidate.

Floors come from bytes and operations (floors.py) and rates measured in the same run.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from strata.kernels.configurations import packed_launch
from strata.kernels.expert_rows.triton import DOWN, GATE, launch_for
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.kernels.launch_shapes import ROW_BUCKETS, LaunchShape
from strata.kernels.packed_rows.triton import device_name
from tests.gpu.benches import CUDA, Bench, Calls, DenseBench
from tests.gpu.floors import Rates, floor_seconds
from tests.gpu.timing import seconds
from tests.gpu.weights import KIND, blob_layout, random_blobs

SEATS = 1200  # 3.3 GB in 4.5 bits: far beyond the last-level cache
EXPERT_COUNTS = (10, 40, 160, 480)
WINDOWS = ROW_BUCKETS[1:]
RANKS = 10
# gate and up, down. Published mixtures: Q4_0, Q4_K with Q6_K, MXFP4 (a table), Q2_0 with Q8_0.
MIXTURES = (("q4_0", "q4_0"), ("q4_k", "q6_k"), ("mxfp4", "mxfp4"), ("q2_0", "q8_0"))
IN_PLACE = MIXTURES[0]
DENSE_SIZES = ((10240, 2560), (2560, 6144), (248320, 2560))
DENSE_KINDS = {10240: ("q8_0", "q4_0", "bf16"), 2560: ("q8_0", "q4_0", "bf16"), 248320: ("q8_0", "bf16")}


@dataclass(frozen=True)
class Speed:
    """One line of the table."""

    what: str
    size: str
    launch: str
    microseconds: float
    spread: float
    gb_per_s: float
    floor_microseconds: float

    @property
    def share(self) -> float:
        """Of the floor: 1 is as fast as it can be."""
        return self.floor_microseconds / self.microseconds

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"share": self.share}

    def __str__(self) -> str:
        return (
            f"{self.what:22} {self.size:24} {self.launch:22} {self.microseconds:8.1f} us +-{self.spread * 50:2.0f} % "
            f"{self.gb_per_s:6.0f} GB/s, floor {self.floor_microseconds:7.1f} us: {self.share * 100:3.0f} %"
        )


def describe(launch: LaunchShape) -> str:
    """A launch in a few characters."""
    unit = "matrix" if launch.uses_matrix_units else "dp4a"
    return f"{unit} r{launch.rows} w{launch.warps} u{launch.unroll} {launch.registers or ''}".rstrip()


def measure(what: str, size: str, launch: str, calls: Calls, rates: Rates, repeats: int = 15) -> Speed:
    time, spread = seconds(calls.functions, repeats)
    floor = floor_seconds(calls.read, calls.operations, rates)
    return Speed(what, size, launch, time * 1e6, spread, calls.read / time / 1e9, floor * 1e6)


def _parts(bench: Bench, name: str, size: str, rates: Rates, parts: tuple[str, ...]) -> Iterator[Speed]:
    work = bench.works[0]
    launches = {
        "gate+up": describe(launch_for(bench.blobs, work, GATE)),
        "down": describe(launch_for(bench.blobs, work, DOWN)),
        "whole": "all launches",
    }
    for part in parts:
        yield measure(f"{part} {name}", size, launches[part], bench.calls(part), rates)


def expert_speeds(rates: Rates, mixtures: tuple[tuple[str, str], ...] = MIXTURES) -> Iterator[Speed]:
    """Experts in the GPU's memory: lists of one row each, and windows whose rows choose 10 at random."""
    for mixture in mixtures:
        blobs = random_blobs(blob_layout(*mixture), SEATS)
        name = "/".join(dict.fromkeys(mixture))
        for count in EXPERT_COUNTS:
            bench = Bench.all_rows(blobs, count)
            yield from _parts(bench, name, f"{count} experts", rates, ("gate+up", "down", "whole"))
        for rows in WINDOWS:
            bench = Bench.routed(blobs, rows, RANKS)
            size = f"{rows} rows, {bench.experts:.0f} experts"
            yield from _parts(bench, name, size, rates, ("gate+up", "down", "whole"))
        if mixture == MIXTURES[0]:
            yield from _parts(Bench.all_rows(blobs, 40, 8), name, "40 experts x 8 rows", rates, ("gate+up", "down"))
        del blobs, bench


def in_place_speeds(arena: torch.Tensor, rates: Rates) -> Iterator[Speed]:
    """Gate and up of experts that are read where they are, in pinned memory."""
    layout = blob_layout(*IN_PLACE)
    made = random_blobs(layout, arena.numel() // layout.total_bytes)
    pinned = arena[: made.memory.numel()]
    pinned.copy_(made.memory)
    blobs = ExpertBlobs.in_place(layout, pinned, CUDA)
    name = "in place " + "/".join(dict.fromkeys(IN_PLACE))
    for rows, count in ((1, 10), (1, 80), (8, 40)):
        bench = Bench.all_rows(blobs, count, rows)
        bench = Bench(blobs, bench.choices[:2])
        yield from _parts(bench, name, f"{count} experts x {rows} rows", rates, ("gate+up",))


def dense_speeds(rates: Rates, sizes: tuple[tuple[int, int], ...] = DENSE_SIZES) -> Iterator[Speed]:
    """Packed matrix times 1 to 32 rows."""
    for outputs, columns in sizes:
        for kind in DENSE_KINDS[outputs]:
            bench = DenseBench(KIND[kind].layout(outputs, columns))
            for rows in ROW_BUCKETS:
                launch = packed_launch(device_name(CUDA), bench.layout, rows)
                calls = bench.calls(rows, launch)
                yield measure(f"{outputs} x {columns} {kind}", f"{rows} rows", describe(launch), calls, rates)
