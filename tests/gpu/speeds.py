"""Speeds of the kernels at the published shapes, each beside a ceiling measured in the same run. Knows no gate.

Every measurement is a `Speed`; sizes that fit a cache are read from several copies in turn.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

from strata.kernels.configurations import LaunchShape
from strata.kernels.expert_rows.triton import (
    DOWN,
    MatrixTask,
    activations_for,
    expert_rows,
    gate_and_up,
    hidden_rows,
    run_matrix,
)
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.triton import multiply_packed
from strata.quant.layout import Array, BlobLayout, Code, MatrixLayout, MinKind, Place, ScaleKind
from strata.quant.packed import PackedMatrix, view_matrix
from tests.gpu.timing import seconds
from tests.kernels.random_matrices import KINDS, work_on

HIDDEN, WIDTH = 2560, 640
SEATS = 1200  # 3.3 GB in 4.5 bits: far beyond the last-level cache
EXPERT_COUNTS = (10, 40, 160, 480)
CACHE_BYTES = 256 << 20  # what is read before the same bytes come again
KIND = {kind.name: kind for kind in KINDS}
# gate and up, down. Published mixtures: Q4_0, Q4_K with Q6_K, MXFP4 (a table), Q2_0 with Q8_0.
MIXTURES = (("q4_0", "q4_0"), ("q4_k", "q6_k"), ("mxfp4", "mxfp4"), ("q2_0", "q8_0"))
LAUNCHES = (
    LaunchShape(unroll=1),
    LaunchShape(unroll=2),
    LaunchShape(unroll=4),
    LaunchShape(stages=3),
    LaunchShape(unroll=2, warps=2),
)
DENSE_SHAPES = ((10240, 2560), (2560, 6144), (248320, 2560))
DENSE_ROWS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Speed:
    """One line of the table."""

    what: str
    size: str
    launch: str
    microseconds: float
    spread: float
    gb_per_s: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def describe(launch: LaunchShape) -> str:
    return f"rows {launch.rows} unroll {launch.unroll} stages {launch.stages} warps {launch.warps}"


def measure(
    what: str, size: str, launch: LaunchShape, moved: float, calls: list[Callable[[], object]], repeats: int = 15
) -> Speed:
    """`moved`: bytes of weights that one call reads."""
    time, spread = seconds(calls, repeats)
    return Speed(what, size, describe(launch), time * 1e6, spread, moved / time / 1e9)


def _fill(layout: MatrixLayout, places: dict[Array, Place], memory: torch.Tensor) -> None:
    """Random scales that are finite into memory [n, bytes]; the codes are random already."""

    def view(array: Array) -> torch.Tensor:
        return memory[:, places[array].offset : places[array].offset + places[array].size]

    def put_halves(array: Array, most: float) -> None:
        part = view(array)
        halves = torch.rand(part.shape[0], part.shape[1] // 2, device=memory.device) * most
        part.copy_(halves.half().view(torch.uint8))

    if layout.scale_kind is ScaleKind.F16:
        put_halves(Array.SCALES, 0.02)
    elif layout.scale_kind in (ScaleKind.E8M0, ScaleKind.UE4M3):
        view(Array.SCALES).random_(108, 118).clamp_(max=126 if layout.scale_kind is ScaleKind.UE4M3 else 254)
    elif layout.scale_kind is ScaleKind.SUPER:
        put_halves(Array.SUPER_SCALES, 0.0005)
    if layout.min_kind is MinKind.F16:
        put_halves(Array.MINS, 0.02)
    elif layout.min_kind is MinKind.SUPER:
        put_halves(Array.SUPER_MINS, 0.0005)
    if layout.code is Code.BF16:
        values = torch.randn(memory.shape[0], places[Array.CODES].size // 2, device=memory.device)
        view(Array.CODES).copy_(values.bfloat16().view(torch.uint8))


def random_blobs(layout: BlobLayout, seats: int) -> ExpertBlobs:
    """Blobs of random codes, made on the GPU."""
    memory = torch.randint(0, 256, (seats, layout.total_bytes), dtype=torch.uint8, device="cuda")
    for matrix, places in zip(layout.matrices, layout.places(), strict=True):
        _fill(matrix, places, memory)
    posts = layout.post_scales
    memory[:, posts.offset : posts.offset + posts.size] = torch.ones(3, device="cuda").view(torch.uint8)
    return ExpertBlobs(layout, memory.view(-1))


def random_dense(layout: MatrixLayout) -> PackedMatrix:
    """A dense matrix of random codes, made on the GPU."""
    memory = torch.randint(0, 256, (1, layout.total_bytes), dtype=torch.uint8, device="cuda")
    _fill(layout, layout.places(), memory)
    return view_matrix(layout, memory[0], layout.places())


def blob_layout(gate: str, down: str) -> BlobLayout:
    """An expert of the published shape."""
    first = KIND[gate].layout(WIDTH, HIDDEN)
    return BlobLayout(first, first, KIND[down].layout(HIDDEN, WIDTH))


def _matrix_bytes(layout: MatrixLayout) -> int:
    return sum(layout.array_bytes(array) for array in Array)


@dataclass(frozen=True)
class Bench:
    """Buffers of `count` distinct experts with `rows` rows each."""

    blobs: ExpertBlobs
    count: int
    rows: int = 1

    def calls(self, part: str, launch: LaunchShape) -> tuple[float, list[Callable[[], object]]]:
        """Bytes of one call, and calls that read different experts."""
        layout, cuda = self.blobs.layout, torch.device("cuda")
        # Every expert gets every row: rows share a reading.
        sets = max(2, min(8, CACHE_BYTES // (self.count * layout.total_bytes) + 1))
        seats = torch.randperm(self.blobs.seats)[: min(sets * self.count, self.blobs.seats)]
        groups = [group for group in seats.split(self.count) if len(group) == self.count]
        works = [replace(work_on(cuda, group.expand(self.rows, -1)), most_rows=launch.rows) for group in groups]
        x = torch.randn(self.rows, layout.gate.columns, device=cuda)
        places = self.rows * self.count
        gate_up = torch.randn(places, 2 * layout.gate.rows, device=cuda)
        out = torch.empty(self.rows, self.count, layout.down.rows, device=cuda)
        activations, h = activations_for(layout.gate, x), hidden_rows(layout, works[0], gate_up)
        if part == "gate+up":
            moved = 2 * self.count * _matrix_bytes(layout.gate)
            return moved, [partial(gate_and_up, self.blobs, w, activations, gate_up, launch) for w in works]
        if part == "down":
            tasks = [(w, MatrixTask((DOWN,), h, w.places, out.view(places, -1))) for w in works]
            moved = self.count * _matrix_bytes(layout.down)
            return moved, [partial(run_matrix, self.blobs, w, task, launch) for w, task in tasks]
        moved = self.count * layout.total_bytes
        return moved, [partial(expert_rows, self.blobs, w, x, out, launch) for w in works]


def expert_speeds(counts: tuple[int, ...] = EXPERT_COUNTS, seats: int = SEATS) -> Iterator[Speed]:
    """Gate and up, down, and the whole of experts in the GPU's memory."""
    for index, mixture in enumerate(MIXTURES):
        blobs = random_blobs(blob_layout(*mixture), seats)
        name = "/".join(dict.fromkeys(mixture))
        for count in counts:
            for launch in LAUNCHES if index == 0 else LAUNCHES[1:2]:
                for part in ("gate+up", "down"):
                    yield measure(
                        f"{part} {name}", f"{count} experts", launch, *Bench(blobs, count).calls(part, launch)
                    )
            whole = Bench(blobs, count).calls("whole", LAUNCHES[1])
            yield measure(f"whole expert {name}", f"{count} experts", LAUNCHES[1], *whole)
        if index == 0:
            for rows in (2, 4, 8):
                launch = LaunchShape(rows=rows)
                size = f"{counts[:2][-1]} experts x {rows} rows"
                calls = Bench(blobs, counts[:2][-1], rows).calls("gate+up", launch)
                yield measure(f"gate+up {name}", size, launch, *calls)
        del blobs


def in_place_speeds(arena: torch.Tensor) -> Iterator[Speed]:
    """Gate and up of experts that are read where they are, in pinned memory."""
    layout = blob_layout(*MIXTURES[0])
    blobs = random_blobs(layout, arena.numel() // layout.total_bytes)
    arena[: blobs.memory.numel()].copy_(blobs.memory)
    pinned = ExpertBlobs.in_place(layout, arena[: blobs.memory.numel()], torch.device("cuda"))
    for count in (10, min(80, pinned.seats // 2)):
        for launch in LAUNCHES[:3]:
            moved, calls = Bench(pinned, count).calls("gate+up", launch)
            yield measure("in place gate+up q4_0", f"{count} experts", launch, moved, calls[:2], 7)


def dense_speeds(shapes: tuple[tuple[int, int], ...] = DENSE_SHAPES) -> Iterator[Speed]:
    """Packed matrix times 1 to 32 rows."""
    for outputs, columns in shapes:
        for name in ("q8_0", "bf16", "q4_0") if outputs < 100_000 else ("q8_0", "bf16"):
            layout = KIND[name].layout(outputs, columns)
            size, steps = _matrix_bytes(layout), decode_steps(layout)
            matrices = [random_dense(layout) for _ in range(min(8, CACHE_BYTES // size + 1))]
            for rows in DENSE_ROWS:
                activations = activations_for(layout, torch.randn(rows, columns, device="cuda"))
                launch = dense_launch(name, rows)
                calls = [partial(multiply_packed, m, steps, activations, rows, launch) for m in matrices]
                yield measure(f"{outputs} x {columns} {name}", f"{rows} rows", launch, size, calls)


def dense_launch(kind: str, rows: int) -> LaunchShape:
    """What the product would choose."""
    from strata.kernels.configurations import packed_launch

    return packed_launch(KIND[kind].layout(16, 256), rows)
