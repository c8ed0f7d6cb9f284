"""Tables of a stage's layers: a row each, changed one by one, and sums of counters that wrap."""

import numpy as np
import pytest
import torch

from strata.experts.tier_tables import TierTables, Totals

CPU = torch.device("cpu")
ADDRESSES = np.arange(12, dtype=np.int64).reshape(2, 6) * 256


def made() -> TierTables:
    return TierTables(ADDRESSES * (ADDRESSES % 512 == 0), ADDRESSES, 6, CPU)


def test_every_layer_has_its_row_and_all_have_one_share() -> None:
    tables = made()
    first, second = tables.layers()
    assert second.resident.tolist() == [6 * 256, 0, 8 * 256, 0, 10 * 256, 0]
    assert second.in_place.tolist() == ADDRESSES[1].tolist()
    tables.set_resident(1, 1, 1 << 46)
    tables.set_in_place(0, 2, 0)
    tables.set_share(torch.tensor([0, 0, 1, 1, 2, 2, 3]))
    tables.flush()
    assert second.resident.tolist() == [6 * 256, 1 << 46, 8 * 256, 0, 10 * 256, 0]
    assert first.in_place.tolist() == [0, 256, 0, 3 * 256, 4 * 256, 5 * 256]
    assert first.share.tolist() == second.share.tolist() == [0, 0, 1, 1, 2, 2, 3]
    second.asked[3] += 1
    assert tables.asked.tolist() == [[0] * 6, [0, 0, 0, 1, 0, 0]]


def test_addresses_change_by_a_flush_and_an_expert_that_is_none_is_refused() -> None:
    tables = made()
    first, _ = tables.layers()
    tables.set_resident(0, 1, 1 << 46)
    assert first.resident[1] == 0
    tables.flush()
    assert first.resident[1] == 1 << 46
    for layer, expert in ((2, 0), (0, 6), (-1, 0)):
        with pytest.raises(IndexError, match=rf"expert {expert} of layer {layer}: there are 2 layers of 6 experts"):
            tables.set_in_place(layer, expert, 0)


def test_each_groups_addresses_change_between_its_own_windows_and_counts_are_one_for_all() -> None:
    tables = TierTables(ADDRESSES, ADDRESSES, 6, CPU, groups=2)
    (first, _), (second, _) = tables.layers(0), tables.layers(1)
    tables.set_resident(0, 1, 1 << 46)
    tables.flush(1)
    assert (int(first.resident[1]), int(second.resident[1])) == (256, 1 << 46)
    tables.set_resident(0, 1, 0)
    tables.flush(0)
    assert (int(first.resident[1]), int(second.resident[1])) == (0, 1 << 46)
    tables.flush(1)
    assert second.resident[1] == 0
    assert first.asked.data_ptr() == second.asked.data_ptr()
    assert first.totals.data_ptr() == second.totals.data_ptr()
    assert first.share.data_ptr() == second.share.data_ptr()


@pytest.mark.parametrize("wrong", [[0] * 6, [0] * 8, [0, 2, 0, 0, 0, 0, 0], [0, 0, -1, 0, 0, 0, 0]])
def test_a_share_that_makes_no_sense_is_refused(wrong: list[int]) -> None:
    tables = made()
    with pytest.raises(ValueError, match=r"a share must be int32 \[7\] with 0 to n for n misses"):
        tables.set_share(torch.tensor(wrong))
    assert tables.layers()[0].share.tolist() == [0] * 7


def test_totals_are_added_up_across_a_wrap() -> None:
    tables = made()
    first, second = (layer.totals for layer in tables.layers())
    first += torch.tensor([1, 2, 3], dtype=torch.int32)
    second += torch.tensor([0x7FFFFFFF, 0, 0], dtype=torch.int32)
    assert tables.totals() == Totals(0x80000000, 2, 3)
    second += torch.tensor([2, 0, 0], dtype=torch.int32)
    assert int(second[0]) < 0, "beyond the largest int32"
    assert tables.totals() == Totals(0x80000002, 2, 3)
