"""Which card is used, and the sentence if none is."""

import pytest

from strata.engine.device_choice import card_problem, is_worth_telling, usable_card
from strata.hardware import GpuFacts
from strata.settings import EngineSettings

OLD = GpuFacts("NVIDIA GeForce GTX 1080", 8 << 30, 7 << 30, (6, 1))
OLDER = GpuFacts("NVIDIA GeForce GTX 960", 2 << 30, 1 << 30, (5, 2))
NEW = GpuFacts("NVIDIA GeForce RTX 3060", 12 << 30, 11 << 30, (8, 6))


@pytest.mark.parametrize(
    ("gpus", "card"), [((), None), ((OLD,), None), ((NEW,), 0), ((OLD, NEW), 1), ((NEW, OLD, NEW), 0)]
)
def test_the_first_card_that_is_new_enough_is_used(gpus: tuple[GpuFacts, ...], card: int | None) -> None:
    assert usable_card(gpus) == card
    assert (card_problem(EngineSettings(), gpus, None) is None) == (card is not None)


def test_a_card_that_is_too_old_is_named_with_what_is_needed() -> None:
    problem = card_problem(EngineSettings(), (OLDER, OLD), None)
    assert problem is not None
    assert "NVIDIA GeForce GTX 1080 has compute capability 6.1 and the kernels need 8.0" in problem


def test_without_a_card_torchs_own_reason_is_given() -> None:
    assert card_problem(EngineSettings(), (), "the driver is too old") == "the driver is too old"
    assert card_problem(EngineSettings(), (), None) == "torch sees no GPU"


def test_what_only_the_cpu_computes_needs_no_card() -> None:
    problem = card_problem(EngineSettings(dtype="float64"), (NEW,), None)
    assert problem is not None
    assert problem.startswith("dtype is float64")


def test_a_pc_that_never_had_a_card_is_told_nothing() -> None:
    assert not is_worth_telling((), None)
    assert is_worth_telling((), "550.54.14")
    assert is_worth_telling((OLD,), None)
