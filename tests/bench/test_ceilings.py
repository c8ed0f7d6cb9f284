"""How many threads are worth using, what a time limit leaves out, and that RAM is really measured."""

import itertools

import pytest

from strata.bench import ceilings
from strata.bench.ceilings import Ceilings, anonymous_memory, measure_ceilings, threads_worth_using
from strata.native import library

needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


@pytest.mark.parametrize(
    ("speeds", "threads"),
    [
        ({}, None),
        ({1: 12.0}, 1),
        ({1: 12.0, 2: 23.0, 4: 44.0, 8: 80.0, 16: 102.0}, 16),
        ({1: 12.0, 2: 23.0, 4: 40.0, 8: 41.0, 16: 41.5}, 4),
        ({16: 39.0, 1: 12.0, 4: 40.0}, 4),
        ({1: 20.0, 2: 20.5, 4: 21.5}, 4),  # small steps add up
    ],
)
def test_threads_are_worth_it_while_memory_gets_faster(speeds: dict[int, float], threads: int | None) -> None:
    assert threads_worth_using(speeds) == threads


@needs_library
def test_ram_is_read_with_every_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "READ_BYTES", 16 << 20)
    told = []
    found = measure_ceilings((1, 2), False, 10.0, lambda *report: told.append(report))
    assert set(found.ram_gb_per_s) == {1, 2}
    assert all(0.1 < rate < 10_000 for rate in found.ram_gb_per_s.values())
    assert (found.card, found.pinned, found.skipped) == (None, None, [])
    assert told == [("measuring RAM with 1 threads", 0, 2), ("measuring RAM with 2 threads", 1, 2), ("measuring", 2, 2)]


@needs_library
def test_what_there_is_no_time_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "READ_BYTES", 1 << 20)
    clock = itertools.count(0.0, 4.0)  # four seconds pass between two looks at it
    found = measure_ceilings((1, 2, 2, 2), False, 9.0, now=lambda: next(clock))
    assert list(found.ram_gb_per_s) == [1, 2]
    assert found.skipped == ["RAM with 2 threads", "RAM with 2 threads"]


def test_a_machine_without_the_library_and_without_a_card_has_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "is_available", lambda: False)
    found = measure_ceilings((1, 2), False, 10.0)
    assert found == Ceilings()
    assert found.threads_worth_using is None


def test_memory_comes_in_whole_pages_and_is_written() -> None:
    memory = anonymous_memory(10_000)
    assert (memory.numel(), int(memory.sum())) == (8192, 8192)
