"""Cells whose authoritative bytes lie in main memory, and the pool of blocks that a device keeps of them.

A *block* is `ratio` cells of one slot side by side; block b of slot s has the number s * blocks + b. A *place* is room
for one block in the pool, which all slots share. Knows sizes and what the words mean; knows no attention.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

from strata.quant.cell_codes import CellRows

NO_PLACE = -1
CLAIMED = -2  # in the table inside a launch: some row has asked for the block already
MOST_STAMP = (1 << 30) - 1  # stamps begin at 1 again behind it


class Word(IntEnum):
    """What a layer's launches count in, by index."""

    ARRIVALS = 0  # programs that have come; 0 between launches
    CLAIMS = 1  # missing blocks so far; 0 between launches
    BROUGHT = 2  # blocks that the last launch brings
    HAND = 3  # the place that is looked at next for who gives way
    STAMP = 4  # of the last launch, 0 before the first


class Total(IntEnum):
    """What is counted up, by index."""

    ASKED = 0  # blocks, for each row
    BROUGHT = 1  # that were missing


class ChosenBlocks(Protocol):
    """Which blocks rows choose; `BlockChoice` of attention is one."""

    @property
    def chosen(self) -> torch.Tensor:
        """int32 [R, top_blocks], of rows that choose."""

    @property
    def counts(self) -> torch.Tensor:
        """int32 [R]: top_blocks, or 0: the row needs every block up to its own."""


class StoredCells(Protocol):
    """One layer's cells of all slots in memory that the device reads; `AttentionCells` is one."""

    @property
    def keys(self) -> CellRows:
        """[slots, cells, kv_heads, ..]"""

    @property
    def values(self) -> CellRows:
        """The same."""


@dataclass(frozen=True)
class CellPages:
    """One layer's pool and what is known of it; on the computing device."""

    table: torch.Tensor  # int32 [slots, blocks]: the place of a block, NO_PLACE: it has none
    owner: torch.Tensor  # int32 [places]: the number of the block there, NO_PLACE: it is free
    used: torch.Tensor  # int32 [places]: 2 * stamp of the last launch that needed it, + 1 until the hand has passed it
    words: torch.Tensor  # int32 [len(Word)]
    totals: torch.Tensor  # int64 [len(Total)]
    keys: CellRows  # [places * ratio, kv_heads, ..]
    values: CellRows
    memory: object = None  # as long as this is held, and so any launch over these pages, the stored cells stay pinned

    @property
    def blocks(self) -> int:
        """Blocks of a slot."""
        return self.table.shape[1]

    @property
    def places(self) -> int:
        """Blocks that the pool holds."""
        return self.owner.numel()

    @property
    def ratio(self) -> int:
        """Cells of a block."""
        return self.keys.codes.shape[0] // self.places


@dataclass(frozen=True)
class PageWork:
    """What the launches of one layer leave for each other; layers after one another share it."""

    missing: torch.Tensor  # int32 [n]: numbers of the blocks that are brought
    targets: torch.Tensor  # int32 [n]: and the places that they get

    @classmethod
    def empty(cls, blocks: int, device: torch.device | str) -> "PageWork":
        """For launches that bring up to so many blocks."""
        missing, targets = (torch.zeros(blocks, dtype=torch.int32, device=device) for _ in range(2))
        return cls(missing, targets)


def blocks_of_row(top_blocks: int) -> int:
    """The most blocks that one row needs: those that it chooses, or as many, then the open one; one is to spare."""
    return top_blocks + 2


def sides(cells: StoredCells | CellPages) -> tuple[torch.Tensor, ...]:
    """The codes, and where there are any the scales, of keys and values: always in one order."""
    return (*cells.keys.tensors, *cells.values.tensors)
