"""Masks are sets of ids in bits: they hold what was put in, and rule out the rest of a row."""

import numpy as np
import pytest
import torch

from strata.sampling.token_mask import allows, mask_of_bytes, mask_without, rule_out, words_for
from tests.sampling.grammars import allowed_ids


@pytest.mark.parametrize("width", [1, 31, 32, 33, 300])
def test_a_mask_holds_the_ids_that_it_was_made_of(width: int) -> None:
    random = np.random.default_rng(width)
    for _ in range(20):
        bits = random.random(width) < 0.5
        mask = mask_of_bytes(np.packbits(bits, bitorder="little").tobytes(), width)
        assert len(mask) == words_for(width) and mask.dtype == np.int32
        assert allowed_ids(mask) == np.flatnonzero(bits).tolist()
        assert [allows(mask, token_id) for token_id in range(width)] == bits.tolist()


def test_ids_behind_the_width_and_behind_the_bytes_are_not_allowed() -> None:
    assert allowed_ids(mask_of_bytes(b"\xff" * 8, 35)) == list(range(35))
    assert allowed_ids(mask_of_bytes(b"\xff", 100)) == list(range(8))
    assert not allows(mask_of_bytes(b"\xff" * 8, 64), 64)
    assert not allows(mask_of_bytes(b"\xff" * 8, 64), -1)


def test_all_but_some() -> None:
    assert allowed_ids(mask_without(40, [0, 33, 39, 70])) == [i for i in range(40) if i not in (0, 33, 39)]


def test_a_row_keeps_the_logits_of_allowed_ids_alone() -> None:
    row = torch.randn(70)
    kept = rule_out(row, mask_without(70, range(10, 60)))
    assert torch.equal(kept[:10], row[:10]) and torch.equal(kept[60:], row[60:])
    assert bool((kept[10:60] == float("-inf")).all())
    assert bool(torch.isfinite(row).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_shows_though_it_is_ruled_out(bad: float) -> None:
    row = torch.zeros(40)
    row[5] = bad
    assert bool(rule_out(row, mask_without(40, [5])).max().isnan())
