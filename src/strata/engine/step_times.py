"""How long each step of each kind of layer takes, averaged over windows: sums, and a table in words.

Knows launches by their names. Times are taken outside graphs: by events on a GPU, by the clock elsewhere.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from strata.models.device.launches import Launch, Program

AHEAD_CYCLES = (
    6_000_000  # about 3 ms of a GPU's waiting: the launches of one layer are then queued before the first runs
)


@dataclass(frozen=True)
class StepTime:
    """One step of one kind of layer: its average over all layers of this kind and all windows."""

    kind: str
    step: str
    microseconds: float
    times_a_window: float

    @property
    def window_microseconds(self) -> float:
        """What a window spends in it."""
        return self.microseconds * self.times_a_window


@dataclass
class StepTimes:
    """Sums over windows."""

    windows: int = 0
    layers: dict[str, int] = field(default_factory=dict)  # of each kind, in one window
    _sums: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)  # calls, microseconds

    def add_window(self, program: Program, microseconds: Sequence[float]) -> None:
        """The time of every launch of one window."""
        self.windows += 1
        kinds = {launch.layer: launch.kind for launch in program if launch.layer is not None}
        self.layers = {kind: list(kinds.values()).count(kind) for kind in kinds.values()}
        for launch, taken in zip(program, microseconds, strict=True):
            calls, total = self._sums.get((launch.kind, launch.step), (0, 0.0))
            self._sums[launch.kind, launch.step] = calls + 1, total + taken

    def steps(self) -> list[StepTime]:
        """Every step, in the order in which they came."""
        return [
            StepTime(kind, step, total / calls, calls / self.windows)
            for (kind, step), (calls, total) in self._sums.items()
        ]

    def as_lines(self) -> list[str]:
        """A table: each kind of layer with its sum, and its steps with their shares of the window."""
        steps = self.steps()
        whole = sum(step.window_microseconds for step in steps)
        lines = [f"{self.windows} windows outside graphs; {whole:,.0f} us a window in their steps"]
        for kind in dict.fromkeys(step.kind for step in steps):
            own = [step for step in steps if step.kind == kind]
            in_window, layers = sum(step.window_microseconds for step in own), self.layers.get(kind)
            whose = "us a window" if layers is None else f"us a layer, {layers} of them"
            lines.append(f"{kind:36} {in_window / (layers or 1):9.1f} {whose}")
            for step in own:
                share = 100 * step.window_microseconds / whole if whole else 0.0
                lines.append(
                    f"  {step.step:34} {step.microseconds:9.1f} us x {step.times_a_window:4.1f}  {share:5.1f} %"
                )
        return lines


def run_timed(program: Program, times: StepTimes, device: torch.device) -> None:
    """Run a window launch by launch, take the time of each, and wait for the last."""
    measure = _run_with_events if device.type == "cuda" else _run_with_clock
    times.add_window(program, measure(program))


def _run_with_events(program: Program) -> list[float]:
    """Layer by layer behind a wait on the GPU, so that no step's time holds the time of launching it from Python."""
    marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    for _, launches in itertools.groupby(program, _layer):
        torch.cuda._sleep(AHEAD_CYCLES)
        before = _record()
        for launch in launches:
            launch.run()
            after = _record()
            marks.append((before, after))
            before = after
    torch.cuda.synchronize()
    return [1e3 * before.elapsed_time(after) for before, after in marks]


def _record() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _run_with_clock(program: Program) -> list[float]:
    taken = []
    for launch in program:
        begin = time.perf_counter()
        launch.run()
        taken.append(1e6 * (time.perf_counter() - begin))
    return taken


def _layer(launch: Launch) -> int | None:
    return launch.layer
