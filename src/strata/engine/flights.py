"""Windows of a stage in flight, as far as they ask while they run: when they may ask, and until when.

Who answers computes experts on the CPU, or reads rows of tables from files. Knows beginning and end; knows no launch. A
stage that has everything in memory that its device reads does nothing here.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import torch

from strata.engine.failures import naming_lost_device
from strata.engine.stage import Stage
from strata.errors import DeviceLostError, EngineError


class Answering(Protocol):
    """Who answers windows: `experts.tiers.ExpertTiers`, `models.device.file_tables.FileTables`."""

    def launched(self, *, is_read: bool = False) -> None:
        """A window is about to be launched."""
        ...

    def landed(self) -> None:
        """The next one has ended."""
        ...

    def cut_off(self) -> None:
        """The last one was not launched whole."""
        ...

    def forget(self) -> None:
        """All have ended, and nobody lands them."""
        ...


@contextmanager
def in_flight(stage: Stage, *, is_read: bool = False) -> Iterator[None]:
    """Around launches that nobody waits for elsewhere: behind the block they have ended on the device, whatever came.

    Raises EngineError if an answer failed, DeviceLostError if there was none: then what was computed means nothing.
    """
    if not stage.model.asked:
        yield
        return
    with launching(stage, is_read=is_read):
        yield
    _wait(stage)
    land(stage)


@contextmanager
def launching(stage: Stage, *, is_read: bool = False) -> Iterator[None]:
    """Around the launch of one window that `land` waits for. One that fails has ended when the block is left."""
    if not stage.model.asked:
        yield
        return
    _begin(stage, is_read)
    try:
        yield
    except Exception:
        _wait(stage)
        _each(each.cut_off for each in stage.model.asked)
        raise
    except BaseException:  # an interrupt counts, and not what it makes fail
        _wait(stage)
        with suppress(EngineError):
            _each(each.cut_off for each in stage.model.asked)
        raise


def land(stage: Stage) -> None:
    """The next window of `launching` has ended on the device. Raises what `in_flight` raises."""
    _each(each.landed for each in stage.model.asked)


def forget(stage: Stage) -> None:
    """Wait for every window in flight, which nobody lands any more. What is lost is told by the next launch."""
    if stage.model.asked:
        with suppress(EngineError), naming_lost_device():
            _wait(stage)
        with suppress(EngineError):
            _each(each.forget for each in stage.model.asked)


def _begin(stage: Stage, is_read: bool) -> None:
    """Tell all who answer, or none of them."""
    begun: list[Answering] = []
    try:
        for each in stage.model.asked:
            each.launched(is_read=is_read)
            begun.append(each)
    except BaseException:
        if begun:
            _wait(stage)
            with suppress(EngineError):
                _each(each.cut_off for each in begun)
        raise


def _each(ends: Iterable[Callable[[], None]]) -> None:
    """Call all of them, whatever one raises; then raise the failure that counts most."""
    failures: list[EngineError] = []
    for end in ends:
        try:
            end()
        except EngineError as failure:
            failures.append(failure)
    if failures:
        raise next((each for each in failures if isinstance(each, DeviceLostError)), failures[0])


def _wait(stage: Stage) -> None:
    """Until all that was launched has ended; copies of experts on a road of their own may go on."""
    if stage.device.type == "cuda":
        torch.cuda.current_stream(stage.device).synchronize()
