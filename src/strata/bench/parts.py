"""Where a decode's time goes, by part of the model. Knows the native library's clocks; knows no family."""

import time
from collections.abc import Callable
from typing import Any

from strata.native.mixers import TIMED_PARTS

OUTSIDE = "outside the library"  # Python between two windows, and the whole model where windows are computed in torch


def profile_parts(model: Any, run: Callable[[], object]) -> dict[str, float]:
    """Seconds of each part while `run` decodes with `model`, the longest first."""
    before = _nanoseconds(model)
    begin = time.perf_counter()
    run()
    total = time.perf_counter() - begin
    seconds = {part: (value - before[part]) * 1e-9 for part, value in _nanoseconds(model).items()}
    seconds[OUTSIDE] = max(0.0, total - sum(seconds.values()))
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _nanoseconds(model: Any) -> dict[str, int]:
    fast = getattr(model, "fast", None)
    if fast is None:
        return {}
    times = fast.model.times()
    return {part: int(getattr(times, part)) for part in TIMED_PARTS}
