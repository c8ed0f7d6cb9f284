"""What a card and the CPU's threads get out of experts in main memory: each alone, both at once, and only reading.

Every list of experts is another one of the same memory, far more than caches hold. Needs a card; knows no window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from strata.bench.tier_formula import TierRates
from strata.experts.share_measuring import CardSide, ListedExperts, PoolSide, measure_rates
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
PART_SECONDS = 0.1  # of each measurement of experts
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
    from strata.bench.device_timing import captured, host_rates_gb_per_s  # needs Triton

    device = torch.device("cuda")
    on_card = card_lists(memory, device)
    card = CardSide(captured(on_card).replay, len(on_card) * memory.list_bytes, device)
    found = measure_rates(PoolSide(cpu_lists(memory), pool), card, PART_SECONDS)
    part = memory.pieces[-1][:READ_BYTES]
    _, in_place_read = host_rates_gb_per_s(part[: part.numel() // 4 * 4])
    with pool.held_awake():
        read = part.numel() / median(read_seconds(pool, part) for _ in range(ROUNDS)) / 1e9
    return TierRates(
        vram_gb_per_s,
        in_place=found.link_alone / 1e9,
        in_place_read=in_place_read,
        cpu=found.cpu_alone / 1e9,
        cpu_read=read,
        both=(found.link_beside + found.cpu_beside) / 1e9,
        both_in_place=found.link_beside / 1e9,
    )


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


def cpu_lists(memory: ExpertMemory) -> list[ListedExperts]:
    """The lists of the last piece."""
    layer, listed = len(memory.pieces) - 1, memory.listed
    blobs = memory.pieces[layer].view(-1, memory.layout.total_bytes)
    order = torch.randperm(memory.lists_of_a_piece * listed, generator=torch.Generator().manual_seed(1))
    return [
        ListedExperts(layer, memory.layout, [blobs[expert] for expert in part.tolist()]) for part in order.split(listed)
    ]
