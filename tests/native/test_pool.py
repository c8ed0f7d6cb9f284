"""Structs have the sizes of the C ABI, pools refuse what they cannot be, paths have names, memory can be read."""

import ctypes
import os
import time
from pathlib import Path

import pytest
import torch

from strata.errors import EngineError
from strata.native import abi, isa, library
from strata.native.matrices import NativeMatrix, matrix_form, matrix_rows
from strata.native.memory import multiply_rate, read_seconds
from strata.native.pool import Pool

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


def test_structs_have_the_sizes_of_the_abi() -> None:
    sizes = {"Matrix": 88, "Product": 24, "ExpertLayout": 400, "ExpertJob": 32, "LayerExperts": 24, "Mailbox": 96}
    assert {name: ctypes.sizeof(getattr(abi, name)) for name in sizes} == sizes


def test_the_best_path_is_in_use_and_another_one_is_left_again() -> None:
    best = isa.current()
    assert best == isa.available()[-1]
    with isa.forced("scalar"):
        assert isa.current() == "scalar"
    assert isa.current() == best


def test_a_path_that_the_processor_lacks_is_refused() -> None:
    for name in set(isa.NAMES) - set(isa.available()):
        with pytest.raises(EngineError, match=f"cannot run the {name} path"), isa.forced(name):
            pass


def test_impossible_pools_are_refused() -> None:
    for threads, spin_us in ((0, 10), (1025, 10), (2, -1)):
        with pytest.raises(EngineError, match="work"):
            Pool(threads, spin_us=spin_us)


def threads_here() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no other one to move to")
def test_a_pinned_thread_makes_way_for_whoever_holds_the_pool() -> None:
    before, cores = threads_here(), os.sched_getaffinity(0)
    with Pool(2) as pool:
        (worker,) = threads_here() - before
        limit = time.monotonic() + 10
        while len(home := os.sched_getaffinity(worker)) != 1:
            assert time.monotonic() < limit, "the worker pins itself when it begins"
            time.sleep(0.001)
        os.sched_setaffinity(0, home)
        try:
            with pool.held_awake():
                assert len(moved := os.sched_getaffinity(worker)) == 1 and not moved & home
                assert os.sched_getaffinity(0) == home
        finally:
            os.sched_setaffinity(0, cores)


def test_a_closed_pool_says_so_and_closes_twice() -> None:
    pool = Pool(2)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        matrix_rows(
            pool, NativeMatrix(matrix_form("f32", 1, 1), [torch.ones(16)] + [torch.empty(0)] * 4), torch.ones(1, 1)
        )


def test_arrays_that_begin_anywhere_are_copied_to_where_they_may() -> None:
    codes = torch.arange(33, dtype=torch.float32)[1:]
    matrix = NativeMatrix(matrix_form("f32", 2, 2), [codes] + [torch.empty(0)] * 4)
    with Pool(1) as pool, pool.held_awake():
        # [columns][16 rows]: row 0 is 1, 17
        assert matrix_rows(pool, matrix, torch.tensor([[1.0, 2.0]])).tolist() == [[35.0, 38.0]]


def test_reading_memory_takes_time_and_refuses_gaps() -> None:
    with Pool(2) as pool:
        assert read_seconds(pool, torch.zeros(1 << 20, dtype=torch.uint8)) > 0
        with pytest.raises(ValueError, match="contiguous"):
            read_seconds(pool, torch.zeros(8, 8)[:, ::2])


def test_multiplying_has_a_rate_on_every_path() -> None:
    with Pool(2) as pool:
        for name in isa.available():
            with isa.forced(name):
                assert multiply_rate(pool, 1000) > 0
        with pytest.raises(EngineError, match="no round"):
            multiply_rate(pool, 0)
