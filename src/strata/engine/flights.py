"""Windows of a stage in flight, as far as the CPU computes some of their experts: when it may be asked, and until when.

Knows beginning and end; knows no launch. A stage with all experts on its device does nothing here.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from strata.engine.failures import naming_lost_device
from strata.engine.stage import Stage
from strata.errors import EngineError


@contextmanager
def in_flight(stage: Stage, *, is_read: bool = False) -> Iterator[None]:
    """Around launches that nobody waits for elsewhere: behind the block they have ended on the device, whatever came.

    Raises EngineError if experts on the CPU failed, DeviceLostError if they gave no answer: then what was computed
    means nothing.
    """
    tiers = stage.model.tiers
    if tiers is None:
        yield
        return
    with launching(stage, is_read=is_read):
        yield
    _wait(stage)
    tiers.landed()


@contextmanager
def launching(stage: Stage, *, is_read: bool = False) -> Iterator[None]:
    """Around the launch of one window that `land` waits for. One that fails has ended when the block is left."""
    tiers = stage.model.tiers
    if tiers is None:
        yield
        return
    tiers.launched(is_read=is_read)
    try:
        yield
    except Exception:
        _wait(stage)
        tiers.landed()
        raise
    except BaseException:  # an interrupt counts, and not what it makes fail
        _wait(stage)
        with suppress(EngineError):
            tiers.landed()
        raise


def land(stage: Stage) -> None:
    """The next window of `launching` has ended on the device. Raises what `in_flight` raises."""
    if stage.model.tiers is not None:
        stage.model.tiers.landed()


def forget(stage: Stage) -> None:
    """Wait for every window in flight, which nobody lands any more. What is lost is told by the next launch."""
    if stage.model.tiers is not None:
        with suppress(EngineError), naming_lost_device():
            _wait(stage)
        with suppress(EngineError):
            stage.model.tiers.forget()


def _wait(stage: Stage) -> None:
    """Until all that was launched has ended; copies of experts on a road of their own may go on."""
    if stage.device.type == "cuda":
        torch.cuda.current_stream(stage.device).synchronize()
