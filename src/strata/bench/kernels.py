"""Expert throughput of the C++ library as a share of what memory and multipliers give, measured in turns in one run.

Knows how bytes are counted and when a number may be shown: only after the path gave the bits of the scalar one.
"""

import ctypes
import json
import mmap
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from strata.bench.spread import Spread
from strata.errors import EngineError
from strata.experts.pool import ExpertList, ExpertPool, ExpertRows, native_layout
from strata.native import isa, library
from strata.native.memory import multiply_rate, read_seconds
from strata.native.pool import Pool
from strata.quant.layout import Array, BlobLayout, Code, MatrixLayout, ScaleKind

CHECKED_EXPERTS = 4
# sub-block, scale, table of each code, as Q2_0, IQ4_NL and Q8_0 have them
_FORMS: dict[Code, tuple[int, tuple[int, ...]]] = {
    Code.CODE2: (64, (-1, 0, 1, 2)),
    Code.CODE4: (32, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)),
    Code.CODE8: (32, ()),
}


@dataclass(frozen=True)
class KernelPlan:
    """What is measured."""

    threads: tuple[int, ...]
    hidden: int = 2560
    width: int = 640
    rows: int = 1  # activation rows of every expert
    experts: int = 10  # of one call: what a token of the published model asks of a layer
    mib: int = 1024  # memory that is read; must be far larger than the caches
    rounds: int = 7
    codes: tuple[str, ...] = ("code2", "code4", "code8")


@dataclass(frozen=True)
class KernelSpeed:
    """One code with one number of threads."""

    code: str
    threads: int
    blob_bytes: int
    operations_per_byte: float  # integer multiply-adds for every byte of an expert
    read: Spread
    experts: Spread
    ratio: Spread  # experts / read of the same round: what counts for few rows
    multiplied: Spread  # 10^9 integer multiply-adds a second
    multiply_peak: Spread  # of the dot product alone, from registers
    multiply_ratio: Spread  # multiplied / peak of the same round: what counts for many rows


@dataclass(frozen=True)
class KernelReport:
    """All of a run."""

    plan: KernelPlan
    path: str
    speeds: tuple[KernelSpeed, ...]

    def as_json(self) -> str:
        """Everything, with field names as keys."""
        return json.dumps(asdict(self), indent=2)


def measure_kernels(plan: KernelPlan) -> KernelReport:
    """Run the plan. Raises EngineError if the path in use does not give the scalar path's bits."""
    speeds = []
    for name in plan.codes:
        layout = bench_layout(Code(name), plan.hidden, plan.width)
        arena = filled_arena(layout, max(plan.mib << 20, plan.experts * layout.total_bytes))
        for threads in plan.threads:
            with Pool(threads) as pool:
                check_bits(pool, layout, arena, plan.rows)
                speeds.append(_measure(pool, layout, arena, plan))
    return KernelReport(plan, isa.current(), tuple(speeds))


def bench_layout(code: Code, hidden: int, width: int) -> BlobLayout:
    """An expert in a code with the scales of its best known format."""
    sub_block, table = _FORMS[code]

    def matrix(rows: int, columns: int) -> MatrixLayout:
        return MatrixLayout(rows, columns, code, sub_block, ScaleKind.F16, table=table)

    return BlobLayout(matrix(width, hidden), matrix(width, hidden), matrix(hidden, width))


def filled_arena(layout: BlobLayout, size: int) -> torch.Tensor:
    """uint8 [experts, blob]: random codes, scales of a usual size; in huge pages where the system gives them."""
    count = max(CHECKED_EXPERTS, size // layout.total_bytes)
    # private: shared anonymous memory never gets huge pages, and then reading is half as fast
    memory = mmap.mmap(-1, count * layout.total_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    arena = torch.frombuffer(memory, dtype=torch.uint8).view(count, layout.total_bytes)
    generator = torch.Generator().manual_seed(1)
    sample = torch.randint(0, 256, (CHECKED_EXPERTS, layout.total_bytes), generator=generator, dtype=torch.uint8)
    for places in layout.places():
        place = places[Array.SCALES]
        values = torch.rand(CHECKED_EXPERTS, place.size // 2, generator=generator) * 0.02 + 0.002
        sample[:, place.offset : place.offset + place.size] = values.half().view(torch.uint8)
    posts = layout.post_scales
    sample[:, posts.offset : posts.offset + posts.size] = torch.ones(3).view(torch.uint8)
    for first in range(0, count, CHECKED_EXPERTS):
        arena[first : first + CHECKED_EXPERTS] = sample[: count - first]
    return arena


def check_bits(pool: Pool, layout: BlobLayout, arena: torch.Tensor, rows: int) -> None:
    """Raises EngineError unless the path in use gives the bits of the scalar one."""
    x = torch.randn(rows, layout.gate.columns, generator=torch.Generator().manual_seed(2))
    listed = _listed(arena, list(range(CHECKED_EXPERTS)), rows)
    found, wanted = torch.zeros(2, rows, CHECKED_EXPERTS, layout.gate.columns)
    path = isa.current()
    ExpertPool(pool, layout).compute(listed, x, found)
    with isa.forced("scalar"):
        ExpertPool(pool, layout).compute(listed, x, wanted)
    if not torch.equal(found.view(torch.int32), wanted.view(torch.int32)):
        raise EngineError(f"{path} and scalar differ in {layout.gate.code.value}: no speed is shown for wrong results")


def _listed(arena: torch.Tensor, experts: list[int], rows: int) -> list[ExpertRows]:
    count = len(experts)
    every_row = torch.arange(rows, dtype=torch.int32)
    return [ExpertRows(arena[expert], every_row, every_row * count + rank) for rank, expert in enumerate(experts)]


def _bound_call(
    pool: Pool, layout: BlobLayout, listed: ExpertList, x: torch.Tensor, out: torch.Tensor
) -> Callable[[], int]:
    """The library's own call with its arguments: what a decode window makes from C++, without Python's checks."""
    call, native = library.load().strata_experts, native_layout(layout)
    where = (x.data_ptr(), x.stride(0), x.shape[0], out.data_ptr(), out.shape[-1])
    return lambda: call(pool.handle, ctypes.byref(native), listed.jobs, listed.count, *where)


def _measure(pool: Pool, layout: BlobLayout, arena: torch.Tensor, plan: KernelPlan) -> KernelSpeed:
    """Reading, multiplying, experts in turns; experts in another random order every round, each byte touched once."""
    x, out = torch.randn(plan.rows, plan.hidden), torch.empty(plan.rows, plan.experts, plan.hidden)
    multiplies = 3 * plan.hidden * plan.width * plan.rows
    read, experts, peak = [], [], []
    with pool.held_awake():
        for round_ in range(plan.rounds + 1):
            order = torch.randperm(arena.shape[0], generator=torch.Generator().manual_seed(round_)).tolist()
            lists = [
                ExpertList(layout, _listed(arena, order[at : at + plan.experts], plan.rows))
                for at in range(0, len(order) - plan.experts + 1, plan.experts)
            ]
            calls = [_bound_call(pool, layout, listed, x, out) for listed in lists]
            seconds, rate = read_seconds(pool, arena), multiply_rate(pool)
            begin = time.perf_counter()
            codes = [call() for call in calls]
            taken = time.perf_counter() - begin
            library.check(max(codes))
            if round_ > 0:  # the first round warms up
                read.append(arena.numel() / seconds / 1e9)
                experts.append(len(calls) * plan.experts * layout.total_bytes / taken / 1e9)
                peak.append(rate / 1e9)
    multiplied = [each * multiplies / layout.total_bytes for each in experts]
    return KernelSpeed(
        layout.gate.code.value,
        pool.threads,
        layout.total_bytes,
        multiplies / layout.total_bytes,
        Spread.of(read),
        Spread.of(experts),
        Spread.of([mine / limit for mine, limit in zip(experts, read, strict=True)]),
        Spread.of(multiplied),
        Spread.of(peak),
        Spread.of([mine / limit for mine, limit in zip(multiplied, peak, strict=True)]),
    )
