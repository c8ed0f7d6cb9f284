"""Tiles lie on the absolute grid of 64 positions."""

import torch

from strata.models.blocks.rows import iterate_tiles, pad_rows


def test_tiles_end_at_multiples_of_64() -> None:
    assert list(iterate_tiles(0, 130)) == [(0, 64), (64, 128), (128, 130)]
    assert list(iterate_tiles(70, 130)) == [(0, 58), (58, 122), (122, 130)]
    assert list(iterate_tiles(64, 1)) == [(0, 1)]
    assert list(iterate_tiles(5, 0)) == []


def test_a_cut_at_a_multiple_of_64_leaves_the_tiles_as_they_are() -> None:
    whole = list(iterate_tiles(10, 200))
    cut = 64 * 2 - 10
    first = list(iterate_tiles(10, cut))
    second = [(start + cut, stop + cut) for start, stop in iterate_tiles(10 + cut, 200 - cut)]
    assert first + second == whole


def test_rows_are_padded_with_zeros_to_a_multiple_of_4() -> None:
    x = torch.randn(2, 3)
    assert torch.equal(pad_rows(x), torch.cat((x, torch.zeros(2, 3))))
    assert pad_rows(torch.randn(5, 3)).shape == (8, 3)
    assert pad_rows(torch.randn(8, 3)).shape == (8, 3)
