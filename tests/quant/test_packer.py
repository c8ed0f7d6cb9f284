"""Scratch memory is used again, and grows to what was needed at once."""

import torch

from strata.quant.packer import Scratch


def test_what_is_taken_together_does_not_overlap_and_comes_again() -> None:
    scratch = Scratch()
    scratch.reset()
    first = [scratch.take(size) for size in (100, 1000, 64)]
    for value, taken in enumerate(first):
        taken.fill_(value)
    assert [int(taken.unique()) for taken in first] == [0, 1, 2]
    assert [taken.numel() for taken in first] == [100, 1000, 64]
    scratch.reset()
    second = [scratch.take(size) for size in (64, 100, 1000)]
    scratch.reset()
    third = [scratch.take(size) for size in (1000, 100, 64)]
    assert third[0].data_ptr() == second[0].data_ptr()
    assert all(taken.data_ptr() % 64 == 0 for taken in (*first, *second, *third))
    begin, end = third[0].data_ptr(), third[0].data_ptr() + 1024 + 128 + 64
    assert all(begin <= taken.data_ptr() < end for taken in third), "one piece holds all of them by now"


def test_a_larger_matrix_alone_replaces_the_memory() -> None:
    scratch = Scratch()
    scratch.take(128)
    scratch.reset()
    large = scratch.take(4096)
    scratch.reset()
    assert scratch.take(128).data_ptr() == large.data_ptr()
    assert large.dtype == torch.uint8
