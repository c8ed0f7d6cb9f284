"""Small tables in files, and who asks for their rows as a window does. Knows no test."""

import ctypes
import time
from dataclasses import replace
from pathlib import Path

import torch

from strata.kernels.expert_plan.tables import OPEN, RAISED, Mailbox
from strata.quant.formats.base import Format
from strata.quant.layout import TILE_ROWS
from strata.weights.table_files import StoredTable, TablePiece
from tests.quant.blocks import mild_blocks, random_blocks

PATIENCE_S = 20.0
HEADER_BYTES = 100  # in front of the rows: they begin anywhere


def stored_in(folder: Path, kind: Format, columns: int, pieces: tuple[int, ...], seed: int = 0) -> StoredTable:
    """A table of random blocks, piece i of so many rows in a file of its own."""
    made = []
    for index, rows in enumerate(pieces):
        make = mild_blocks if kind.storage_of is not None else random_blocks  # the worst scales need the whole matrix
        blocks = make(kind, rows * columns // kind.block_weights, seed + index)
        file = folder / f"{kind.name}-{index}.bin"
        file.write_bytes(bytes(HEADER_BYTES) + blocks.tobytes())
        made.append(TablePiece(file, file.stat(), HEADER_BYTES, rows))
    return StoredTable("a.table", kind.layout(TILE_ROWS, columns), kind.factor(1.0), kind.gguf_type, 0, tuple(made))


def in_memory(kind: Format, table: StoredTable) -> torch.Tensor:
    """The same table as it is held in memory, decoded: [rows, columns]."""
    columns = table.layout.columns
    parts = []
    for piece in table.pieces:
        raw = piece.file.read_bytes()[HEADER_BYTES:]
        parts.append(kind.to_packed(raw, piece.rows, columns).decode())
    return torch.cat(parts)


def mailbox_for(table: StoredTable, rows: int, heads: int, *, has_gate: bool = False) -> Mailbox:
    """Of one table."""
    return replace(Mailbox.create(rows, heads, table.layout.columns, has_gate=has_gate), x=None)


class Asker:
    """What a GPU does with one table's mailbox."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.door = ctypes.c_uint32.from_address(mailbox.door.data_ptr())
        self.done = ctypes.c_uint32.from_address(mailbox.done.data_ptr())

    def ask(self, ids: torch.Tensor, table: int = 0) -> None:
        """ids int64 [rows, heads]; below 0: nobody wants one."""
        box, count = self.mailbox, ids.numel()
        if box.gate is not None:
            box.gate.fill_(OPEN if self.done.value == RAISED else 0)
        box.entries[:count] = torch.stack((ids.flatten(), torch.arange(count)), dim=1).int()
        box.header[:] = torch.tensor([table, ids.shape[0], count], dtype=torch.int32)
        self.door.value = self.door.value + 1

    def wait(self) -> torch.Tensor:
        """The rows [rows, heads, columns] behind the answer to what was asked last."""
        limit, gate = time.monotonic() + PATIENCE_S, self.mailbox.gate
        while self.done.value < self.door.value or (gate is not None and int(gate) < OPEN):
            assert time.monotonic() < limit, "nobody answered"
            time.sleep(0)
        return self.mailbox.out
