"""However many addresses change, they reach a device in a few calls; the last change of an entry stands."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from strata.experts import address_changes
from strata.experts.address_changes import BUFFERS, ROOM, AddressChanges


class Counting(TorchDispatchMode):
    """How many calls write to one tensor's memory."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.writes = 0
        self._memory = table.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func._schema.is_mutable and args[0].untyped_storage().data_ptr() == self._memory:
            self.writes += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("changes", [1, 7, ROOM, ROOM + 1, 3 * BUFFERS * ROOM])
def test_the_last_change_of_an_entry_stands_and_a_flush_is_one_write_for_each_room(changes: int) -> None:
    rng = np.random.default_rng(changes)
    table = torch.arange(40_000, dtype=torch.int64).view(2, 20, 1000)
    wanted, found = table.flatten().clone(), AddressChanges(table)
    entries = set()
    for entry, address in rng.integers((0, 1 << 46), (40_000, 1 << 47), (changes, 2)).tolist():
        found.set(entry, address)
        wanted[entry] = address
        entries.add(entry)
    assert not torch.equal(table.flatten(), wanted)
    with Counting(table) as counting:
        found.flush()
    assert torch.equal(table.flatten(), wanted)
    assert counting.writes == -(-len(entries) // ROOM)
    with Counting(table) as counting:
        found.flush()
    assert counting.writes == 0


def test_what_a_failed_flush_leaves_is_written_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.zeros(4, dtype=torch.int64)
    changes = AddressChanges(table)
    changes.set(1, 5)
    changes.set(3, 7)
    monkeypatch.setattr(address_changes, "ROOM", 1)
    refused = [RuntimeError("the second write is refused")]
    write = AddressChanges._write

    def refusing(self: AddressChanges, part: list[tuple[int, int]]) -> None:
        if part == [(3, 7)] and refused:
            raise refused.pop()
        write(self, part)

    monkeypatch.setattr(AddressChanges, "_write", refusing)
    with pytest.raises(RuntimeError, match="the second write is refused"):
        changes.flush()
    assert table.tolist() == [0, 5, 0, 0]
    changes.set(1, 6)
    changes.flush()
    assert table.tolist() == [0, 6, 0, 7]


def test_an_entry_that_is_not_there_is_refused() -> None:
    changes = AddressChanges(torch.zeros(2, 3, dtype=torch.int64))
    for entry in (-1, 6):
        with pytest.raises(IndexError, match=f"entry {entry} of 6 addresses"):
            changes.set(entry, 0)
