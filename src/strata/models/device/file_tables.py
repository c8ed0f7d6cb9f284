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
from strata.experts.asking import Answers, AskingWindows, AskingWords
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
    """See the module. Not thread-safe, but for `stop`, and `waiting_for` of `windows` as long as it is not closed.

    Each group of slots asks in mailboxes of its own: `windows[group]` is told when its windows are in flight.
    """

    def __init__(
        self,
        uses: Sequence[TableUse],
        device: torch.device,
        limit_s: float = ANSWER_LIMIT_S,
        *,
        waits_in_stream: bool = False,
        groups: int = 1,
    ) -> None:
        """waits_in_stream: the device's stream waits for rows, instead of a kernel. groups: of slots.

        Raises WeightFileError for files that are not what the model was opened with.
        """
        self.device = device
        self._asked = tuple(
            tuple(_asked(use, index, device, waits_in_stream) for index, use in enumerate(uses)) for _ in range(groups)
        )
        tables = [use.table for use in uses]
        self.readers = Pool(min(MOST_READERS, read_cpu().usable_cores), keeps_cores=False, spin_us=SPIN_US)
        boxes = [(each.mailbox, each.state) for of_group in self._asked for each in of_group]
        self._service = TableService(self.readers, tables, [mailbox for mailbox, _ in boxes], limit_s)
        name_of = partial(_name_of, tuple(table.name for table in tables))
        words = AskingWords("reading n-gram tables", "the threads that read n-gram tables", name_of)
        self._answers = Answers(self._service, words)
        firsts = range(0, len(boxes), len(uses))
        self.windows = tuple(
            AskingWindows(self._answers, dict(enumerate(boxes[first : first + len(uses)], first))) for first in firsts
        )

    def table(self, index: int, group: int = 0) -> AskedTable:
        """Where a group's launches ask for rows of a table; tables are counted as in `uses`."""
        return self._asked[group][index]

    @contextmanager
    def asked_by_launches(self) -> Iterator[None]:
        """Around launches that may ask and that nobody lands: behind the block they have ended on the device.

        They ask as the first group's windows do. Raises what `AskingWindows.landed` raises: then what was computed
        means nothing.
        """
        windows = self.windows[0]
        windows.launched(is_read=True)
        try:
            yield
        except BaseException:
            self._wait()
            with suppress(EngineError):
                windows.cut_off()
            raise
        self._wait()
        windows.cut_off()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def counts(self) -> TableCounters:
        """What was read so far."""
        return self._service.counters()

    def stop(self) -> None:
        """See `Answers.stop`."""
        self._answers.stop()

    def close(self) -> None:
        """See `Answers.close`."""
        self._answers.close()


def file_tables_of(
    built: Any, device: torch.device, layers: range | None = None, *, waits_in_stream: bool = False, groups: int = 1
) -> FileTables | None:
    """Of a built model, layer by layer, or of a run of its layers; None if none of their tables lies in files."""
    run = range(len(built.layers)) if layers is None else layers
    found = built.layers[run.start : run.stop]
    ngrams = [ngram for layer in found if (ngram := getattr(layer, "ngram", None)) is not None]
    uses = [TableUse(part.table.stored, part.shape.heads) for part in ngrams if isinstance(part.table, FileTable)]
    return FileTables(uses, device, waits_in_stream=waits_in_stream, groups=groups) if uses else None


def _name_of(names: Sequence[str], index: int) -> str:
    return names[index] if 0 <= index < len(names) else f"table {index}, which is none"


def _asked(use: TableUse, index: int, device: torch.device, waits_in_stream: bool) -> AskedTable:
    is_pinned = device.type == "cuda"
    columns = use.table.layout.columns
    made = Mailbox.create(NGRAM_ROWS, use.heads, columns, is_pinned=is_pinned, has_gate=waits_in_stream)
    return AskedTable(replace(made, x=None), PlanState.create(device), index)
