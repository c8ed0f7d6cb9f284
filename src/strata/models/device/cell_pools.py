"""Keys and values of all slots that lie in main memory, and each attention layer's pool of blocks on the device.

Knows memory and who must forget what; the launches that bring blocks are in `kernels/cell_pages`. Whoever writes a cell
writes main memory, and the pool too where its block is there, so that only what is written by copying is forgotten.
"""

from dataclasses import dataclass, field

import torch

from strata.errors import EngineError, ModelError
from strata.experts.host_memory import HostMemory, Pinning, take_host_memory
from strata.hardware import read_cpu
from strata.kernels.attention_rows.arguments import MOST_ELEMENTS
from strata.kernels.cell_pages import NO_PLACE, CellPages, Total, Word, blocks_of_row, copy_cells
from strata.models.device.sizes import StateSizes
from strata.quant.cell_codes import CellCode, CellKind, CellRows

GIB = 1 << 30
ALIGNMENT = 256  # bytes at which an array begins
PLACES_STEP = 8
COPIED_ROWS = 64  # whose number is rounded up where a slot's are copied: they take whole COPY_STEPs of every part


def pool_places(sizes: StateSizes, slots: int, cells: int, resident: int) -> int:
    """Blocks of a layer's pool: of `resident` cells a slot, and no more than there are in slots of `cells` cells.

    A multiple of PLACES_STEP, so that what belongs to a layer begins at 16 bytes.
    """
    places = -(-slots * min(cells, resident) // sizes.ratio)
    return -(-places // PLACES_STEP) * PLACES_STEP


def least_resident(top_blocks: int, ratio: int, rows: int = 1) -> int:
    """Cells of a slot that its pool must have for `rows` rows of a window."""
    return rows * blocks_of_row(top_blocks) * ratio


@dataclass(frozen=True)
class StoredHeads:
    """Keys and values in main memory that a device reads and writes; they lie there as long as this is held."""

    keys: CellRows  # heads [layers, slots, cells, kv_heads]
    values: CellRows
    memory: HostMemory = field(repr=False)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Codes, and scales where there are any."""
        return (*self.keys.tensors, *self.values.tensors)

    @classmethod
    def take(cls, sizes: StateSizes, slots: int, cells: int, kind: CellKind, device: torch.device) -> "StoredHeads":
        """Zeros. Raises EngineError if the system gives no such memory, or does not pin it for a GPU."""
        shape = (sizes.attention_layers, slots, cells, sizes.kv_heads)
        parts = [
            part
            for code in (kind.keys, kind.values)
            for part in CellRows.zeros(code, *shape, head_dim=sizes.head_dim, device="meta").tensors
        ]
        starts, size = [], 0
        for part in parts:
            starts.append(size)
            size += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        memory = _pinned(size, device)
        found = [
            memory.pieces[0][start : start + part.nbytes].view(part.dtype).view(part.shape)
            for start, part in zip(starts, parts, strict=True)
        ]
        count = 2 if kind.keys.has_scales else 1
        return cls(CellRows(*found[:count]), CellRows(*found[count:]), memory)


def _pinned(size: int, device: torch.device) -> HostMemory:
    pinning = Pinning.cuda() if device.type == "cuda" else None
    words = f"{size / GIB:.1f} GiB of keys and values in main memory"
    without = "with kv_resident 0 they lie on the card"
    try:
        memory = take_host_memory([size], read_cpu().usable_cores, pinning)
    except ModelError as failure:
        raise EngineError(f"the system does not give the {words}: a smaller context needs less; {without}") from failure
    if pinning is not None and not memory.is_pinned:
        raise EngineError(
            f"the system does not pin the {words} that the card reads there: a higher limit of locked memory helps "
            f"(`ulimit -l unlimited`, for a container `--ulimit memlock=-1`); {without}"
        )
    return memory


@dataclass(frozen=True)
class CellPools:
    """The pools of all attention layers: see `CellPages`, each with a first dimension more."""

    table: torch.Tensor  # int32 [layers, slots, blocks]
    owner: torch.Tensor  # int32 [layers, places]
    used: torch.Tensor
    words: torch.Tensor  # int32 [layers, len(Word)]
    totals: torch.Tensor  # int64 [layers, len(Total)]
    keys: CellRows  # heads [layers, places * ratio, kv_heads]
    values: CellRows
    stored: StoredHeads
    told: torch.Tensor = field(repr=False)  # int64 [layers, len(Total)] in main memory: `totals` as of some time ago

    @classmethod
    def empty(
        cls, sizes: StateSizes, slots: int, cells: int, resident: int, kind: CellKind, device: torch.device
    ) -> "CellPools":
        """Zeros, of which no block has a place in a pool of `resident` cells a slot.

        Raises ValueError for a model without an indexer, EngineError for a pool that is too large to be counted in, or
        as `StoredHeads.take`.
        """
        layers, places = sizes.attention_layers, pool_places(sizes, slots, cells, resident)
        if not sizes.index_dim:
            raise ValueError("only attention with an indexer reads few cells: this model's cells lie on the device")
        most = (MOST_ELEMENTS - 1) // (sizes.kv_heads * sizes.head_dim)
        if places * sizes.ratio > most:
            raise EngineError(
                f"setting kv_resident: {resident:,} cells of each of {slots} slots are more than the {most:,} that a "
                f"card's pool can hold: up to {most // slots // sizes.ratio * sizes.ratio:,} work, or fewer slots"
            )

        def words(*shape: int, value: int = 0, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full((layers, *shape), value, dtype=dtype, device=device)

        def heads(code: CellCode) -> CellRows:
            shape = (layers, places * sizes.ratio, sizes.kv_heads)
            return CellRows.zeros(code, *shape, head_dim=sizes.head_dim, device=device)

        return cls(
            words(slots, cells // sizes.ratio, value=NO_PLACE),
            words(places, value=NO_PLACE),
            words(places),
            words(len(Word)),
            words(len(Total), dtype=torch.int64),
            heads(kind.keys),
            heads(kind.values),
            StoredHeads.take(sizes, slots, cells, kind, device),
            torch.zeros(layers, len(Total), dtype=torch.int64, pin_memory=device.type == "cuda"),
        )

    @property
    def places(self) -> int:
        """Blocks that the pool of one layer holds."""
        return self.owner.shape[1]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that lie on the device."""
        words = self.table, self.owner, self.used, self.words, self.totals
        return (*words, *self.keys.tensors, *self.values.tensors)

    def layer(self, index: int) -> CellPages:
        """Of one attention layer."""
        words = self.table[index], self.owner[index], self.used[index], self.words[index], self.totals[index]
        return CellPages(*words, self.keys[index], self.values[index], self.stored)

    def most_rows(self, top_blocks: int) -> int | None:
        """Rows that may share a window; None: any number, because every block of every slot has a place."""
        _, slots, blocks = self.table.shape
        return None if self.places >= slots * blocks else self.places // blocks_of_row(top_blocks)

    def forget(self, slot: int) -> None:
        """The slot's cells in main memory are written anew by who does not write the pools: nothing of it is there."""
        blocks = self.table.shape[2]
        is_of_slot = (self.owner >= slot * blocks) & (self.owner < (slot + 1) * blocks)
        self.table[:, slot].fill_(NO_PLACE)
        self.owner.masked_fill_(is_of_slot, NO_PLACE)
        self.used.masked_fill_(is_of_slot, 0)

    def copy(self, source: int, target: int, rows: int) -> None:
        """Make the first `rows` cells of slot `target` those of slot `source`, behind what was launched before."""
        stop = -(-rows // COPIED_ROWS) * COPIED_ROWS
        for part in self.stored.tensors:
            found, wanted = ([layer[slot, :stop] for layer in part] for slot in (source, target))
            copy_cells(found, wanted, self.table.device)
        self.forget(target)

    def settle(self) -> None:
        """Until main memory holds what was launched, for a host that reads or writes it."""
        if self.table.is_cuda:
            torch.cuda.current_stream(self.table.device).synchronize()

    def counted(self) -> dict[str, int]:
        """Blocks that rows asked for and that were brought, of all layers; of a GPU as it told since the last call."""
        self.told.copy_(self.totals, non_blocking=True)
        asked, brought = self.told.sum(dim=0).tolist()
        return {"asked": asked, "brought": brought}


def pool_bytes(sizes: StateSizes, cells: int, resident: int, kind: CellKind) -> int:
    """Of one slot's share of all pools and their tables on the device."""
    places, blocks = pool_places(sizes, 1, cells, resident), cells // sizes.ratio
    held = places * sizes.ratio * sizes.kv_heads * kind.head_bytes(sizes.head_dim)
    return sizes.attention_layers * (held + 4 * (blocks + 2 * places))


def stored_bytes(sizes: StateSizes, cells: int, kind: CellKind) -> int:
    """Of one slot's keys and values in main memory."""
    return sizes.attention_layers * cells * sizes.kv_heads * kind.head_bytes(sizes.head_dim)
