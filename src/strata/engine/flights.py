"""Windows of a stage in flight, as far as they ask while they run: when they may ask, and until when.

Who answers computes experts on the CPU, or reads rows of tables from files. Knows beginning and end; knows no launch. A
stage that has everything in memory that its device reads does nothing here.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from strata.engine.chain_stage import Answering, WindowStage
from strata.engine.failures import naming_lost_device
from strata.errors import DeviceLostError, EngineError


@contextmanager
def in_flight(stage: WindowStage, *, is_read: bool = False) -> Iterator[None]:
    """Around launches that nobody waits for elsewhere: behind the block they have ended on the device, whatever came.

    Raises EngineError if an answer failed, DeviceLostError if there was none: then what was computed means nothing.
    """
    if not stage.asked:
        yield
        return
    with launching(stage, is_read=is_read):
        yield
    stage.wait_here()
    land(stage)


@contextmanager
def launching(stage: WindowStage, *, is_read: bool = False) -> Iterator[None]:
    """Around the launch of one window that `land` waits for. One that fails has ended when the block is left."""
    if not stage.asked:
        yield
        return
    _begin(stage, is_read)
    try:
        yield
    except Exception:
        stage.wait_here()
        _each(each.cut_off for each in stage.asked)
        raise
    except BaseException:  # an interrupt counts, and not what it makes fail
        stage.wait_here()
        with suppress(EngineError):
            _each(each.cut_off for each in stage.asked)
        raise


def land(stage: WindowStage) -> None:
    """The next window of `launching` has ended on the device. Raises what `in_flight` raises."""
    _each(each.landed for each in stage.asked)


def forget(stage: WindowStage) -> None:
    """Wait for every window in flight, which nobody lands any more. What is lost is told by the next launch."""
    if stage.asked:
        with suppress(EngineError), naming_lost_device():
            stage.wait_here()
        with suppress(EngineError):
            _each(each.forget for each in stage.asked)


def _begin(stage: WindowStage, is_read: bool) -> None:
    """Tell all who answer, or none of them."""
    begun: list[Answering] = []
    try:
        for each in stage.asked:
            each.launched(is_read=is_read)
            begun.append(each)
    except BaseException:
        if begun:
            stage.wait_here()
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
