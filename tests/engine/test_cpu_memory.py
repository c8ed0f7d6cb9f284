"""On the CPU: all weights in memory, experts in files where that was asked for and helps, or numbers in a sentence."""

from dataclasses import replace

import pytest

from strata.engine.cpu_memory import CpuNeeds, plan_cpu_memory
from strata.engine.memory_plan import GIB
from strata.errors import ModelError
from strata.hardware import MemoryFacts

NEEDS = CpuNeeds(
    whole=60 * GIB,
    experts=50 * GIB,
    least_read=1 * GIB,
    conversations=2 * GIB,
    held_as="the files' types",
    filing_problem=None,
)


def planned(
    available_gib: float, *, is_filed: bool, ram_gib: float | None = None, needs: CpuNeeds = NEEDS
) -> int | None:
    return plan_cpu_memory(needs, MemoryFacts(128 * GIB, int(available_gib * GIB)), ram_gib, is_filed=is_filed)


def test_experts_lie_in_memory_if_they_fit_whatever_was_asked_for() -> None:
    for is_filed in (False, True):
        assert planned(60, is_filed=is_filed) is None
    assert planned(64, is_filed=False, ram_gib=16) is None, "ram_gib is of cards unless experts stay in files"
    assert plan_cpu_memory(NEEDS, MemoryFacts(0, 0), None, is_filed=True) is None, "this system tells nothing"


def test_experts_that_are_read_get_what_everything_else_leaves_of_seven_eighths() -> None:
    assert planned(32, is_filed=True) == (28 - 10 - 2) * GIB
    assert planned(64, is_filed=True, ram_gib=20) == (20 - 10 - 2) * GIB
    assert planned(13, is_filed=True, ram_gib=13) == 1 * GIB
    assert planned(13, is_filed=True) == 1 * GIB, "the least comes before what is left to the system"


def test_what_is_too_little_is_refused_with_what_would_do() -> None:
    with pytest.raises(ModelError) as short:
        planned(12.9, is_filed=True)
    assert str(short.value) == (
        "this model needs 60.0 GiB of memory in the files' types and 12.9 GiB are free: with experts left in its files "
        "it needs 13.0 GiB, 2.0 of them for conversations and 1.0 for the experts that a window may ask of one layer; "
        "fewer slots and a smaller context take less"
    )
    with pytest.raises(ModelError, match=r"and 12\.9 GiB may be used: with experts left in its files it needs 13\.0"):
        planned(64, is_filed=True, ram_gib=12.9)
    with pytest.raises(ModelError) as hinted:
        planned(32, is_filed=False)
    assert str(hinted.value) == (
        "this model needs 60.0 GiB of memory in the files' types and 32.0 GiB are free: with `--mmap`, which leaves "
        "experts in the model's file until they are asked for, it would run; `strata inspect` shows what takes how much"
    )


def test_the_advice_is_not_given_where_it_would_not_help() -> None:
    dense = replace(NEEDS, experts=0, least_read=0)
    unfiled = replace(NEEDS, filing_problem="it has no GGUF file")
    for needs, gib in ((NEEDS, 10.0), (dense, 32.0), (unfiled, 32.0)):
        with pytest.raises(ModelError) as refused:
            planned(gib, is_filed=False, needs=needs)
        assert str(refused.value).endswith("are free: `strata inspect` shows what takes how much")
    with pytest.raises(ModelError, match=r"`--mmap` changes nothing, it has no GGUF file$"):
        planned(32, is_filed=True, needs=unfiled)
    with pytest.raises(ModelError, match="are free: `strata inspect`"):
        planned(32, is_filed=True, needs=dense)
