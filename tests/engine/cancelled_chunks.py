"""Reads that are given up anywhere, by the hundred; knows no test. Also for a card: `python -m tests.gpu.reading`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from strata.engine.stage_model import StageModel
from strata.models.base import Segment

PAGE_BYTES = 4096


def host_bytes() -> int:
    """Main memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE_BYTES


def steps_of(number: int) -> int:
    """How many steps a read makes before it is given up: mostly none or one, now and then up to a dozen."""
    return number // 50 % 12 + 2 if number % 50 == 49 else int(number % 10 > 6)


def cancel_reads(model: StageModel, text: torch.Tensor, reads: int) -> None:
    """Begin reads and give them up; every 20th is stopped by an error in the middle of a step.

    Each in a slot of its own, which is given back.
    """
    for number in range(reads):
        state = model.new_state()
        reading = model.begin_read(Segment(state, text))
        if number % 20 == 19:
            with suppress(_BrokenOff), _breaking_off(model, number // 20 % 4):
                advance(reading, 3)
        else:
            advance(reading, steps_of(number))
        reading.cancel()
        model.release(state)


def advance(reading: Any, steps: int) -> None:
    """So many steps, or all there are."""
    for _ in range(steps):
        if reading.advance():
            return


class _BrokenOff(Exception):
    """What stands for an error of the engine's."""


@contextmanager
def _breaking_off(model: StageModel, launches: int) -> Iterator[None]:
    """The chunk under way fails behind so many launches."""
    assert model.chunks is not None and model.chunks._holder is not None
    chunk, left = model.chunks._holder, iter(range(launches))
    inner = chunk.launch

    def run_some(run: Callable[[Any], None]) -> None:
        def broken(launch: Any) -> None:
            if next(left, None) is None:
                raise _BrokenOff
            run(launch)

        inner(broken)

    chunk.launch = run_some  # type: ignore[method-assign]
    yield
