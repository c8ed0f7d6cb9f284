"""Rows of tables in files, read by C++ threads for windows that ring: the doorbell's other kind of answer.

Knows descriptors and mailboxes; knows no hash, no layer and no window.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from strata.experts.doorbell import ANSWER_LIMIT_S, Doorbell, as_structs, limit_ms
from strata.kernels.expert_plan.tables import Mailbox
from strata.kernels.packed_rows.native import native_form
from strata.native import abi, library
from strata.native.closing import Closing
from strata.native.pool import Pool
from strata.weights.reading import read_scale
from strata.weights.table_files import StoredTable, close_files, open_piece_files

FP8_TYPE = -1  # what the library is told where there is no number of ggml's


@dataclass(frozen=True)
class TableCounters:
    """What a service has done since it was made."""

    requests: int
    rows: int  # of tables, that were asked for
    waited: int  # of them, that the system did not have in memory
    busy_ns: int  # from reading requests to raising their done flags


class _OpenTable(Closing):
    """A table as the library takes it, and what that points to."""

    descriptors: dict[Path, int] | None = None

    def __init__(self, table: StoredTable) -> None:
        self.scales = [None if piece.scale is None else read_scale(piece.scale) for piece in table.pieces]
        self.descriptors = open_piece_files(table)
        pieces = (abi.TablePiece * len(table.pieces))()
        for made, piece, scales in zip(pieces, table.pieces, self.scales, strict=True):
            made.name, made.file = piece.file.name.encode(errors="replace"), self.descriptors[piece.file]
            made.opened = abi.FileStamp.of(piece.opened)
            made.begin, made.rows = piece.begin, piece.rows
            made.scales = None if scales is None else scales.data_ptr()
        self.struct = abi.FileTable(native_form(table.layout, table.post_scale))
        self.struct.type = FP8_TYPE if table.type is None else table.type
        self.struct.scale_rows, self.struct.piece_count, self.struct.pieces = table.scale_rows, len(pieces), pieces

    def close(self) -> None:
        descriptors, self.descriptors = self.descriptors, None
        with suppress(OSError):
            close_files((descriptors or {}).values())


class TableService(Doorbell):
    """Answers with rows of n tables, table i in the mailboxes i, n + i .. They have the bits of the table in memory."""

    def __init__(
        self,
        readers: Pool,
        tables: Sequence[StoredTable],
        mailboxes: Sequence[Mailbox],
        limit_s: float = ANSWER_LIMIT_S,
    ) -> None:
        """readers: threads that read, and nothing else; kept here with the mailboxes. As many of these for each table.

        Raises WeightFileError for files that cannot be opened, EngineError for those that are not what the model was
        opened with, and for what contradicts the contract.
        """
        opened = [_OpenTable(table) for table in tables]
        assert len(mailboxes) % len(tables) == 0, "each table has as many mailboxes"
        structs = (abi.FileTable * len(mailboxes))(*(opened[box % len(opened)].struct for box in range(len(mailboxes))))
        boxes, create = as_structs(mailboxes), library.load().strata_tables_create

        def make(made: ctypes.c_void_p) -> int:
            code = create(readers.handle, structs, boxes, len(mailboxes), limit_ms(limit_s), ctypes.byref(made))
            return int(code)

        super().__init__(make, (readers, tuple(mailboxes), opened))

    def counters(self) -> TableCounters:
        """What it has done so far."""
        found, waited = abi.DoorbellCounters(), ctypes.c_uint64()
        library.check(library.load().strata_doorbell_counters(self._service, ctypes.byref(found)))
        library.check(library.load().strata_tables_waited(self._service, ctypes.byref(waited)))
        return TableCounters(found.requests, found.experts, waited.value, found.busy_ns)
