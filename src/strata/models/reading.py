"""A read as a generator computes it: what lies between two of its yields is one step. See `models.base.Reading`."""

from collections.abc import Generator
from typing import TypeVar

import torch

from strata.models.base import Output

Made = TypeVar("Made")
OutputSteps = Generator[None, None, Output]  # yields between two steps, returns behind the last one


class Steps:
    """See `Reading`. Of a model that keeps no marks."""

    checkpoints = ()

    def __init__(self, steps: OutputSteps) -> None:
        self._steps = steps
        self._output: Output | None = None

    @torch.no_grad()
    def advance(self) -> bool:
        """See `Reading.advance`."""
        try:
            next(self._steps)
        except StopIteration as end:
            self._output = end.value
            return True
        return False

    def finish(self) -> Output:
        """See `Reading.finish`."""
        assert self._output is not None, "a read is finished behind its last step"
        return self._output

    def cancel(self) -> None:
        """See `Reading.cancel`."""
        self._steps.close()


@torch.no_grad()
def run_through(steps: Generator[None, None, Made]) -> Made:
    """All steps, one after another; what they give."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
