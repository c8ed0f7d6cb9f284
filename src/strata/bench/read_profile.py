"""How long each part of a chunk's layers takes, by kind of layer: from one launch's end to the next one's.

Waiting for experts on their way counts to the launch that needs them. Knows launches by their names.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from strata.models.device.launches import Launch
from strata.models.device.reading.chunks import ChunkMemory, ChunkPlace


@dataclass(frozen=True)
class PartTime:
    """One step of one kind of layer: milliseconds in one layer, on average over the layers of this kind."""

    kind: str
    step: str
    ms: float
    layers: int


def profile_chunk(memory: ChunkMemory, token_ids: torch.Tensor) -> tuple[PartTime, ...]:
    """Pass these rows through slot 0 from position 0 on, in a text of their own."""
    memory.state.reset(0)
    clock = _EventClock() if memory.model.device.type == "cuda" else _HostClock()
    chunk = memory.begin(ChunkPlace(0, 0, token_ids.numel()), token_ids)
    try:
        while not chunk.is_through:
            chunk.step(clock.run)
    finally:
        chunk.end()
    sums: dict[tuple[str, str], float] = {}
    layers: dict[str, set[int | None]] = {}
    for launch, ms in clock.taken():
        key = (launch.kind, launch.step)
        sums[key] = sums.get(key, 0.0) + ms
        layers.setdefault(launch.kind, set()).add(launch.layer)
    return tuple(
        PartTime(kind, step, total / len(layers[kind]), len(layers[kind])) for (kind, step), total in sums.items()
    )


class _EventClock:
    """On a card: an event behind each launch."""

    def __init__(self) -> None:
        self._launches: list[Launch] = []
        self._marks = [_mark()]

    def run(self, launch: Launch) -> None:
        launch.run()
        self._launches.append(launch)
        self._marks.append(_mark())

    def taken(self) -> list[tuple[Launch, float]]:
        """Milliseconds of each launch, when all are done."""
        torch.cuda.synchronize()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return [
            (launch, before.elapsed_time(after)) for launch, (before, after) in zip(self._launches, pairs, strict=True)
        ]


class _HostClock:
    """Elsewhere: the host's clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._taken: list[tuple[Launch, float]] = []

    def run(self, launch: Launch) -> None:
        begin = self._clock()
        launch.run()
        self._taken.append((launch, 1e3 * (self._clock() - begin)))

    def taken(self) -> list[tuple[Launch, float]]:
        """Milliseconds of each launch."""
        return self._taken


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
