"""Which road an op takes: the twin on the CPU, and everywhere if it is forced."""

from collections.abc import Iterator

import pytest
import torch

from strata.kernels.roads import force_reference, is_reference_on, takes_reference


@pytest.fixture(autouse=True)
def unforced() -> Iterator[None]:
    yield
    force_reference(False)


def test_the_cpu_takes_the_twin_and_a_gpu_triton() -> None:
    assert takes_reference(torch.zeros(1)) and is_reference_on("cpu")
    assert not is_reference_on("cuda:0") and not is_reference_on(torch.device("cuda"))


def test_the_twins_can_be_forced_and_left_again() -> None:
    force_reference(True)
    assert is_reference_on("cuda")
    force_reference(False)
    assert not is_reference_on("cuda")
