"""A read made of a generator's steps: what lies between two yields, what it gives, and how it is given up."""

import pytest
import torch

from strata.models.base import Output
from strata.models.reading import OutputSteps, Steps, run_through

OUTPUT = Output(torch.zeros(1, 2), torch.zeros(3, 4))


def read(done: list[str]) -> OutputSteps:
    try:
        for layer in range(3):
            if layer:
                yield
            assert not torch.is_grad_enabled()
            done.append(f"layer {layer}")
        return OUTPUT
    finally:
        done.append("left")


def test_a_step_is_what_lies_between_two_yields() -> None:
    done: list[str] = []
    reading = Steps(read(done))
    assert done == []
    assert [reading.advance() for _ in range(3)] == [False, False, True]
    assert torch.is_grad_enabled()
    assert reading.finish() is OUTPUT and reading.checkpoints == ()
    reading.cancel()
    assert done == ["layer 0", "layer 1", "layer 2", "left"]
    assert run_through(read([])) is OUTPUT


def test_a_read_that_is_given_up_goes_no_further() -> None:
    done: list[str] = []
    reading = Steps(read(done))
    reading.advance()
    reading.cancel()
    assert done == ["layer 0", "left"]
    with pytest.raises(AssertionError, match="behind its last step"):
        reading.finish()
