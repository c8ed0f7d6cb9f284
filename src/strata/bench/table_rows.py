"""What a token's rows of n-gram tables take that stay in a model's files: from the system's memory and from the disk.

Asks the threads that windows ask, of rows at random; knows no window. What they take is counted in the C++ library,
from reading a request to its answer: a window that waits for it also has the way to the card and back.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from strata.experts.table_service import TableCounters, TableService
from strata.hardware import read_cpu
from strata.kernels.expert_plan.tables import Mailbox
from strata.models.device.file_tables import MOST_READERS, SPIN_US
from strata.models.families import family_of
from strata.models.qwen4_exp_weights import NGRAM_TABLE
from strata.native.pool import Pool
from strata.weights.opening import ModelSource
from strata.weights.table_files import StoredTable, stored_table, table_problem

TOKENS = 64  # asked for one after another
SEED = 20


@dataclass(frozen=True)
class TableSpeed:
    """Microseconds that all rows of a token take."""

    rows: int  # of a token, of all tables
    first_us: float  # as the system had them
    waited: float  # share of them that it did not have in memory, 0 to 1
    again_us: float  # the same rows right behind that


def measure_tables(source: ModelSource) -> TableSpeed | None:
    """Of a model's n-gram tables; None if it has none, or none whose rows are read from its files. Under a second."""
    heads = _heads(source)
    if not heads or table_problem(source, heads) is not None:
        return None
    found = [_measured(stored_table(source, name), count) for name, count in heads.items()]
    firsts, waits, agains = (sum(values) for values in zip(*found, strict=True))
    return TableSpeed(sum(heads.values()), firsts, waits / len(found), agains)


def in_words(speed: TableSpeed) -> str:
    """A sentence."""
    first = f"{speed.first_us:.0f} us with {speed.waited:.0%} of them from the disk, " if speed.waited else ""
    return (
        f"A token's {speed.rows} rows of n-gram tables were read from the files in {first}{speed.again_us:.0f} us from "
        "the system's memory."
    )


def _heads(source: ModelSource) -> Mapping[str, int]:
    """Rows that a token asks of each table, by its name."""
    config: Any = family_of(source.config).parse_config(source.config)
    ngrams, present = getattr(config, "ngrams", {}), source.names()
    by_name = {f"model.layers.{index}.{NGRAM_TABLE}": ngram.heads for index, ngram in ngrams.items()}
    return {name: heads for name, heads in by_name.items() if name in present}


def _measured(table: StoredTable, heads: int) -> tuple[float, float, float]:
    """Microseconds a token, the share that was waited for, and microseconds again."""
    mailbox = replace(Mailbox.create(1, heads, table.layout.columns), x=None)
    generator = torch.Generator().manual_seed(SEED)
    ids = torch.randint(table.rows, (TOKENS, heads), generator=generator)
    readers = Pool(min(MOST_READERS, read_cpu().usable_cores), keeps_cores=False, spin_us=SPIN_US)
    with readers, closing(TableService(readers, [table], [mailbox])) as service:
        service.begin(0)
        before = service.counters()
        first = _asked(service, mailbox, ids)
        again = _asked(service, mailbox, ids)
        service.end(0)
    return _us(before, first), (first.waited - before.waited) / ids.numel(), _us(first, again)


def _asked(service: TableService, mailbox: Mailbox, ids: torch.Tensor) -> TableCounters:
    """Ask for token after token as a window does; the counters behind it."""
    for row in ids:
        mailbox.entries.copy_(torch.stack((row, torch.arange(len(row))), dim=1))
        mailbox.header.copy_(torch.tensor([0, 1, len(row)]))
        mailbox.door.add_(1)
        while int(mailbox.done) < int(mailbox.door):
            pass
    return service.counters()


def _us(before: TableCounters, behind: TableCounters) -> float:
    return (behind.busy_ns - before.busy_ns) / (behind.requests - before.requests) / 1e3
