"""What a card and the CPU's threads get out of experts in main memory: each alone, both at once, and only reading.

Every list of experts is another one of the same memory, far more than caches hold. Needs a card; knows no window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from strata.bench.tier_formula import TierRates
from strata.experts.pool import ExpertList, ExpertPool, ExpertRows
from strata.kernels.expert_rows import expert_rows_into
from strata.kernels.expert_rows.buffers import ExpertBuffers
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.native.memory import read_seconds
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout

EXPERTS_OF_A_LIST = 10  # as a row of the published model asks for
ROUNDS = 5
TOGETHER_SECONDS = 0.5
READ_BYTES = 1 << 30


@dataclass(frozen=True)
class ExpertMemory:
    """Pinned pieces of main memory with blobs of one layout, and how many experts a list takes of them."""

    layout: BlobLayout
    pieces: Sequence[torch.Tensor]  # uint8, a layer each
    listed: int = EXPERTS_OF_A_LIST

    @property
    def lists_of_a_piece(self) -> int:
        """Lists without an expert in common."""
        return self.pieces[0].numel() // self.layout.total_bytes // self.listed

    @property
    def list_bytes(self) -> int:
        """What one list reads."""
        return self.listed * self.layout.total_bytes


def measure_tier_rates(memory: ExpertMemory, pool: Pool, vram_gb_per_s: float) -> TierRates:
    """Everything, in a few seconds. vram_gb_per_s: what copying inside the card gave."""
    from strata.bench.device_timing import captured, host_rates_gb_per_s, seconds  # needs Triton

    on_card = card_lists(memory, torch.device("cuda"))
    on_cpu = CpuLists(memory, pool)
    graph = captured(on_card)
    card_seconds = seconds(on_card, ROUNDS)[0]
    part = memory.pieces[-1][:READ_BYTES]
    _, in_place_read = host_rates_gb_per_s(part[: part.numel() // 4 * 4])
    with pool.held_awake():
        cpu_seconds = median(on_cpu.run() for _ in range(ROUNDS + 1))
        read = part.numel() / median(read_seconds(pool, part) for _ in range(ROUNDS)) / 1e9
        card_part, cpu_part = _rates_together(graph, len(on_card) * memory.list_bytes, card_seconds, on_cpu)
    size = memory.list_bytes / 1e9
    alone = size / card_seconds, in_place_read, size / cpu_seconds, read
    return TierRates(vram_gb_per_s, *alone, both=card_part + cpu_part, both_in_place=card_part)


def card_lists(memory: ExpertMemory, device: torch.device) -> list["CardList"]:
    """Calls of the card's kernel, one for each list of the first piece; they share their buffers."""
    layout, listed = memory.layout, memory.listed
    x = room_for([layout.gate, layout.up], 1, device)
    for tensor in (x.plain, *(() if x.quantized is None else (x.quantized.values, x.quantized.records))):
        if tensor is not None:
            tensor.zero_()
    buffers = ExpertBuffers.empty(layout, 1, listed, device)
    blobs = ExpertBlobs.in_place(layout, memory.pieces[0], device)
    order = torch.randperm(memory.lists_of_a_piece * listed, generator=torch.Generator().manual_seed(0))
    works = [ExpertWork.from_choices(ids[None].to(device)) for ids in order.split(listed)]
    return [CardList(blobs, work, x, buffers) for work in works]


@dataclass(frozen=True)
class CardList:
    """One launch of the window's kernel over experts in main memory."""

    blobs: ExpertBlobs
    work: ExpertWork
    x: RowsOut
    buffers: ExpertBuffers

    def __call__(self) -> None:
        expert_rows_into(self.blobs, self.work, self.x, self.buffers)


class CpuLists:
    """The lists of the last piece, one after another on the CPU's threads."""

    def __init__(self, memory: ExpertMemory, pool: Pool) -> None:
        layout, listed = memory.layout, memory.listed
        blobs = memory.pieces[-1].view(-1, layout.total_bytes)
        row, ranks = torch.zeros(1, dtype=torch.int32), torch.arange(listed, dtype=torch.int32)
        order = torch.randperm(memory.lists_of_a_piece * listed, generator=torch.Generator().manual_seed(1))
        self.list_bytes = memory.list_bytes
        self._pool = ExpertPool(pool, layout)
        self._lists = [
            ExpertList(layout, [ExpertRows(blobs[expert], row, ranks[at : at + 1]) for at, expert in enumerate(ids)])
            for ids in (part.tolist() for part in order.split(listed))
        ]
        self.x = torch.randn(1, layout.gate.columns, generator=torch.Generator().manual_seed(2))
        self.out = torch.empty(1, listed, layout.gate.columns)
        self._next = 0

    def run(self) -> float:
        """Seconds of a list, on average over all of them."""
        begin = perf_counter()
        for _ in self._lists:
            self.run_one()
        return (perf_counter() - begin) / len(self._lists)

    def run_one(self) -> None:
        """The next list, from the first again behind the last."""
        self._pool.compute_list(self._lists[self._next], self.x, self.out)
        self._next = (self._next + 1) % len(self._lists)


def _rates_together(
    graph: torch.cuda.CUDAGraph, graph_bytes: int, list_seconds: float, on_cpu: CpuLists
) -> tuple[float, float]:
    """10^9 bytes a second of the card and of the CPU while both are busy."""
    replays = max(2, round(TOGETHER_SECONDS / (list_seconds * max(1, graph_bytes // on_cpu.list_bytes))))
    done = torch.cuda.Event()
    torch.cuda.synchronize()
    begin, lists = perf_counter(), 0
    for _ in range(replays):
        graph.replay()
    done.record()
    while not done.query():
        on_cpu.run_one()
        lists += 1
    taken = perf_counter() - begin
    return replays * graph_bytes / taken / 1e9, lists * on_cpu.list_bytes / taken / 1e9
