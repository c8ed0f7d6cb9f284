"""Asking for rows of a table in a file and collecting them, held against the definition. Knows no expected value of its
own: the twin in torch gives it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from strata.kernels.expert_plan.tables import Mailbox, PlanState
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.ngram_rows import AskedTable, NgramHash, ngram_ask, ngram_collect, reference
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.window_rows import WindowRows
from strata.quant.packed import PackedMatrix
from tests.kernels.quantized_rows import assert_quantized

Ask = Callable[[WindowRows, torch.Tensor, NgramHash, AskedTable], None]
Collect = Callable[[WindowRows, AskedTable, RowsOut], None]


def asked_table(
    rows: int, heads: int, columns: int, device: torch.device | str = "cpu", *, has_gate: bool = False
) -> AskedTable:
    """Nothing is asked yet."""
    is_pinned = torch.device(device).type == "cuda"
    mailbox = Mailbox.create(rows, heads, columns, is_pinned=is_pinned, has_gate=has_gate)
    return AskedTable(replace(mailbox, x=None), PlanState.create(device), 3)


def answer(asked: AskedTable, table: PackedMatrix) -> None:
    """What the threads that read files do, from a table in memory."""
    box = asked.mailbox
    wanted = box.entries[: int(box.header[2])]
    exists = wanted[:, 0] >= 0
    places, ids = wanted[exists, 1].long(), wanted[exists, 0].long()
    box.out.flatten(0, 1)[places] = table.decode()[ids]
    box.done.copy_(box.door)
    if box.gate is not None:
        box.gate.fill_(1)


@dataclass(frozen=True)
class AskingCase:
    """One window and the table that it asks."""

    rows: WindowRows
    history: torch.Tensor
    hash: NgramHash
    table: PackedMatrix  # in main memory
    used: list[int]

    def on(self, device: torch.device) -> "AskingCase":
        """The window on a device, the table where it is."""
        moved = {name: getattr(self.rows, name).to(device) for name in WindowRows.__dataclass_fields__}
        constants = (self.hash.multipliers, self.hash.head_sizes, self.hash.head_starts)
        hash = NgramHash(*(values.to(device) for values in constants), self.hash.end_of_text)
        return replace(self, rows=WindowRows(**moved), history=self.history.to(device), hash=hash)

    def check(
        self, device: torch.device, ask: Ask = ngram_ask, collect: Collect = ngram_collect, *, has_gate: bool = False
    ) -> None:
        """Request and rows are those of the definition, plain and quantized. Raises AssertionError."""
        count, heads, width = self.rows.count, self.hash.heads, self.table.layout.columns
        columns, there = heads * width, self.on(device)
        asked, twin = (asked_table(count + 2, heads, width, place, has_gate=has_gate) for place in (device, "cpu"))
        reference.ngram_ask(self.rows, self.history, self.hash, twin)
        ask(there.rows, there.history, there.hash, asked)
        wait_for(device)
        for name in ("door", "done", "header", "entries", "gate"):
            found, wanted = getattr(asked.mailbox, name), getattr(twin.mailbox, name)
            assert found is wanted is None or torch.equal(found, wanted), name
        rows = torch.full((count, columns), 7.0)
        reference.ngram_gather(self.rows, self.history, self.table, self.hash, RowsOut(rows, None))
        plain = torch.full((count, columns), 7.0, device=device)
        quantized = Activations.empty(count, columns // 32, device, LaunchShape()) if columns % 32 == 0 else None
        answering = threading.Timer(0.05, answer, (asked, self.table))
        answering.start()
        collect(there.rows, asked, RowsOut(plain, quantized))
        answering.join()
        wait_for(device)
        assert torch.equal(plain.cpu().view(torch.int32), rows.view(torch.int32)), "rows"
        if quantized is not None:
            assert_quantized(quantized, rows, self.used)


def wait_for(device: torch.device) -> None:
    """Until it has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
