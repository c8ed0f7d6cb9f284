"""A read in one step: what it gives, and when."""

import torch

from strata.models.base import Output
from strata.models.reading import ReadAtOnce


def test_the_only_step_does_everything() -> None:
    output, done = Output(torch.zeros(1, 2), torch.zeros(3, 4)), []

    def read() -> Output:
        done.append(True)
        return output

    reading = ReadAtOnce(read)
    assert not done
    assert reading.advance()
    assert reading.finish() is output and reading.checkpoint is None
    reading.cancel()
    assert len(done) == 1
