"""One stage's n-gram tables that lie in files: where its windows ask for rows of them, and who reads these.

Knows mailboxes, threads and when windows are in flight; knows no hash and no launch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from strata.errors import EngineError
from strata.experts.asking import AskingWindows, AskingWords
from strata.experts.doorbell import ANSWER_LIMIT_S
from strata.experts.table_service import TableCounters, TableService
from strata.hardware import read_cpu
from strata.kernels.expert_plan.tables import Mailbox, PlanState
from strata.kernels.ngram_rows import AskedTable
from strata.models.device.held import FileTable
from strata.models.device.reading.rows import NGRAM_ROWS
from strata.native.pool import Pool
from strata.weights.table_files import StoredTable

# A token asks for 16 rows, which one thread copies from memory, or asks a disk for at once. More of them share the 512
# rows of a prompt's window.
MOST_READERS = 4
SPIN_US = 20  # of theirs behind a request: the next one comes a window later


@dataclass(frozen=True)
class TableUse:
    """A table, and how many rows of it a token asks for."""

    table: StoredTable
    heads: int


class FileTables:
    """See the module. Not thread-safe, but for `stop`, and `waiting_for` as long as it is not closed."""

    def __init__(
        self,
        uses: Sequence[TableUse],
        device: torch.device,
        limit_s: float = ANSWER_LIMIT_S,
        *,
        waits_in_stream: bool = False,
    ) -> None:
        """waits_in_stream: the device's stream waits for rows, instead of a kernel.

        Raises WeightFileError for files that are not what the model was opened with.
        """
        self.device = device
        self.asked = tuple(_asked(use, index, device, waits_in_stream) for index, use in enumerate(uses))
        tables = [use.table for use in uses]
        self.readers = Pool(min(MOST_READERS, read_cpu().usable_cores), keeps_cores=False, spin_us=SPIN_US)
        self._service = TableService(self.readers, tables, [each.mailbox for each in self.asked], limit_s)
        boxes = [(each.mailbox, each.state) for each in self.asked]
        name_of = partial(_name_of, tuple(table.name for table in tables))
        words = AskingWords("reading n-gram tables", "the threads that read n-gram tables", name_of)
        self.windows = AskingWindows(self._service, boxes, words)

    def launched(self, *, is_read: bool = False) -> None:
        """See `AskingWindows.launched`; reads ask as windows do."""
        self.windows.launched()

    def landed(self) -> None:
        """See `AskingWindows.landed`."""
        self.windows.landed()

    def cut_off(self) -> None:
        """See `AskingWindows.cut_off`."""
        self.windows.cut_off()

    def forget(self) -> None:
        """See `AskingWindows.forget`."""
        self.windows.forget()

    @contextmanager
    def asked_by_launches(self) -> Iterator[None]:
        """Around launches that may ask and that nobody lands: behind the block they have ended on the device.

        Raises what `landed` raises: then what was computed means nothing.
        """
        self.launched(is_read=True)
        try:
            yield
        except BaseException:
            self._wait()
            with suppress(EngineError):
                self.cut_off()
            raise
        self._wait()
        self.cut_off()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def waiting_for(self) -> str | None:
        """See `AskingWindows.waiting_for`."""
        return self.windows.waiting_for()

    def counts(self) -> TableCounters:
        """What was read so far."""
        return self._service.counters()

    def stop(self) -> None:
        """See `AskingWindows.stop`."""
        self.windows.stop()

    def close(self) -> None:
        """See `AskingWindows.close`."""
        self.windows.close()


def file_tables_of(built: Any, device: torch.device, *, waits_in_stream: bool = False) -> FileTables | None:
    """Of a built model, layer by layer; None if none of its tables lies in files."""
    ngrams = [ngram for layer in built.layers if (ngram := getattr(layer, "ngram", None)) is not None]
    uses = [TableUse(part.table.stored, part.shape.heads) for part in ngrams if isinstance(part.table, FileTable)]
    return FileTables(uses, device, waits_in_stream=waits_in_stream) if uses else None


def _name_of(names: Sequence[str], index: int) -> str:
    return names[index] if 0 <= index < len(names) else f"table {index}, which is none"


def _asked(use: TableUse, index: int, device: torch.device, waits_in_stream: bool) -> AskedTable:
    is_pinned = device.type == "cuda"
    columns = use.table.layout.columns
    made = Mailbox.create(NGRAM_ROWS, use.heads, columns, is_pinned=is_pinned, has_gate=waits_in_stream)
    return AskedTable(replace(made, x=None), PlanState.create(device), index)
