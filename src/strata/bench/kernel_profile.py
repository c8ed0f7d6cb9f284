"""The kernels that some calls run on a card and their own times, by torch's profiler. Knows no op.

A call's kernels are told from the next one's by a marker between them: a kernel of torch that waits for one clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from strata.errors import EngineError
from strata.models.device.launches import Program

MARKER = "spin_kernel"  # what `torch.cuda._sleep` launches
_NOT_KERNELS = ("Memcpy", "Memset")


@dataclass(frozen=True)
class KernelTime:
    """One kernel, in one call on average."""

    name: str
    launches: float
    microseconds: float  # of all its launches


def profile_kernels(call: Callable[[], object], calls: int) -> tuple[KernelTime, ...]:
    """What `call` runs, the longest first; launches of replayed graphs are seen one by one."""

    def run() -> None:
        for _ in range(calls):
            call()

    return sum_by_name(_events(run), calls)


def profile_each(calls: Sequence[Callable[[], object]]) -> list[list[tuple[str, float]]]:
    """For every call its kernels in order, as (name, microseconds). Each runs once, behind the others."""

    def run() -> None:
        for call in calls:
            call()
            torch.cuda._sleep(1)

    return split_at_markers(_events(run), len(calls))


def split_at_markers(events: Sequence[tuple[str, float]], calls: int) -> list[list[tuple[str, float]]]:
    """The kernels in front of each marker. Raises EngineError if there is not one marker for each call."""
    parts: list[list[tuple[str, float]]] = [[]]
    for name, taken in events:
        if MARKER in name:
            parts.append([])
        elif not name.startswith(_NOT_KERNELS):
            parts[-1].append((name, taken))
    if len(parts) != calls + 1:
        raise EngineError(f"the profiler saw {len(parts) - 1} of {calls} calls end: no time is shown")
    return parts[:-1]


def kernels_by_layer(program: Program, kernels: Sequence[int]) -> dict[str, dict[int, int]]:
    """How many kernels the layers of each kind run: {kind: {kernels of a layer: layers}}.

    kernels: of every launch of the program, of which those outside layers are left out.
    """
    sums: dict[tuple[str, int], int] = {}
    for launch, count in zip(program, kernels, strict=True):
        if launch.layer is not None:
            sums[launch.kind, launch.layer] = sums.get((launch.kind, launch.layer), 0) + count
    found: dict[str, dict[int, int]] = {}
    for (kind, _), count in sorted(sums.items()):
        layers = found.setdefault(kind, {})
        layers[count] = layers.get(count, 0) + 1
    return found


def _events(run: Callable[[], None]) -> list[tuple[str, float]]:
    """What ran on the card, in the order in which it began: (name, microseconds)."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:  # without, torch warns of cycles
        run()
        torch.cuda.synchronize()
    events = [event for event in profiler.events() or [] if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us()) for event in events]


def sum_by_name(events: Sequence[tuple[str, float]], calls: int) -> tuple[KernelTime, ...]:
    """(name, microseconds) of every launch -> averages over `calls`, the longest first; copies are no kernels."""
    sums: dict[str, tuple[int, float]] = {}
    for name, taken in events:
        if not name.startswith(_NOT_KERNELS):
            launches, total = sums.get(name, (0, 0.0))
            sums[name] = launches + 1, total + taken
    times = [KernelTime(name, launches / calls, total / calls) for name, (launches, total) in sums.items()]
    return tuple(sorted(times, key=lambda time: time.microseconds, reverse=True))
