"""A stage that is run step by step and timed, in the place of its graphs: what the setting `verify_profile` asks for.

Knows variants and buckets; how a step is timed is in `step_times.py`.
"""

import atexit
import sys

from strata.engine.graphs import warm_up
from strata.engine.local_stage import RunStage
from strata.engine.stage import Stage, Variant
from strata.engine.step_times import StepTimes, run_timed
from strata.types import ProgressCallback

Times = dict[tuple[Variant, int], StepTimes]


class StageProfile:
    """Times of every step, for each variant and bucket by itself."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.times: Times = {}

    def run(self, variant: Variant, bucket: int) -> None:
        """Launch one variant of a bucket and wait until it is done."""
        times = self.times.setdefault((variant, bucket), StepTimes())
        run_timed(self.stage.launches(variant, bucket), times, self.stage.device)

    def as_lines(self) -> list[str]:
        """One table for each variant and bucket that ran."""
        return lines_of(self.times)


def lines_of(times: Times) -> list[str]:
    """One table for each variant and bucket."""
    lines = []
    for (variant, bucket), found in times.items():
        rows = "1 row" if bucket == 1 else f"{bucket} rows"
        first, *others = found.as_lines()
        lines += [f"{variant.value}, {rows}: {first}", *others]
    return lines


def profiled_run(stage: Stage, on_progress: ProgressCallback | None = None) -> RunStage:
    """Runs the stage timed, after everything ran once untimed: compiling a kernel is no time of its step.

    The tables go to stderr when the process ends, which keeps the times and not the stage.
    """
    warm_up(stage, on_progress)
    profile = StageProfile(stage)
    atexit.register(report, profile.times)
    return profile.run


def report(times: Times) -> None:
    """Print the tables to stderr; nothing if nothing ran or stderr is closed."""
    if times and sys.stderr is not None:
        print(*lines_of(times), sep="\n", file=sys.stderr)
