"""What the steps of a machine cost, as numbers: the model behind `strata simulate`. Pure; knows no scheduler.

A prompt passes the stages chunk by chunk, as a pipeline. A *beat* is the time in which every stage does one chunk:

    beat         1        2        3        4
    stage 0   chunk 1  chunk 2  chunk 3
    stage 1            chunk 1  chunk 2  chunk 3      one beat more than chunks: what a run costs whatever its length

docs/joining.md says where the numbers of a machine come from.
"""

import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from strata.errors import SettingsError
from strata.scheduler.read_modes import chunk_end

MOST_COUNT = 1 << 20
MOST_SECONDS = 3600.0


@dataclass(frozen=True)
class Machine:
    """Counts, and seconds of what is done. What is not named in a file is 0, or 1 of counts."""

    name: str
    layers: int
    chunk_rows: int
    row_seconds: float  # reading a row, on the slowest stage
    window_seconds: float  # of a group's window through all stages, without its rows
    stream_seconds: float  # more for each of its streams
    slots: int = 1
    stages: int = 1
    groups: int = 1
    run_seconds: float = 0.0  # of every call that reads, beside its rows and the beat that fills the pipeline
    link_seconds: float = 0.0  # sending a chunk the experts that it misses, beside its computing
    host_stream_seconds: float = 0.0  # of each stream's window: the CPU computes experts, one group's at a time
    hand_off_seconds: float = 0.0  # from one stage to the next, where no other group's work hides it
    drain_seconds: float = 0.0  # between windows and a run behind them
    preparation_row_seconds: float = 0.0  # of a prompt's row before its read begins, beside everything else

    @property
    def steps_of_beat(self) -> int:
        """Layer steps in which every stage does one chunk."""
        return -(-self.layers // self.stages)

    def beats(self, begin: int, stop: int) -> tuple[int, ...]:
        """Rows of the largest chunk under way, beat by beat, of the rows `begin` to `stop`."""
        chunks = [end - start for start, end in self.chunks(begin, stop)]
        late = self.stages - 1
        return tuple(max(chunks[max(0, beat - late) : beat + 1]) for beat in range(len(chunks) + late))

    def chunks(self, begin: int, stop: int) -> list[tuple[int, int]]:
        """Where the chunks of these rows begin and end."""
        cuts = [begin]
        while cuts[-1] < stop:
            cuts.append(chunk_end(cuts[-1], stop, self.chunk_rows))
        return list(itertools.pairwise(cuts))

    def step_seconds(self, rows: int, *, is_first_beat: bool = False) -> float:
        """Computing one layer step in a beat of so many rows. A run's own cost is spread over its first beat."""
        seconds = self.row_seconds * rows + (self.run_seconds if is_first_beat else 0.0)
        return seconds / self.steps_of_beat

    @property
    def link_step_seconds(self) -> float:
        """Sending what one layer step misses."""
        return self.link_seconds / self.steps_of_beat

    def longest_step(self) -> float:
        """The most that one step of a read takes behind windows that need not drain."""
        return self.step_seconds(self.chunk_rows, is_first_beat=True) + self.link_step_seconds

    def windows_seconds(self, streams: Collection[int], *, is_filling: bool) -> float:
        """One window of every group, with so many streams each. is_filling: other work was on the stages before.

        Where windows follow windows, groups are on different stages, and while one waits for the CPU another computes.
        """
        sizes = [count for count in streams if count]
        on_stages = [self.window_seconds + self.stream_seconds * count for count in sizes]
        on_cpu = [self.host_stream_seconds * count for count in sizes]
        alone = max(stages + cpu for stages, cpu in zip(on_stages, on_cpu, strict=True))
        together = sum(on_stages) / self.stages
        if not is_filling:
            return max(alone, together, sum(on_cpu))
        hand_offs = self.hand_off_seconds * (self.stages - 1)
        behind_first = (sum(on_stages) - max(on_stages)) / self.stages
        return max(alone + behind_first, sum(on_cpu)) + hand_offs

    def longest_window(self) -> float:
        """The most that the windows of all slots take, with the stages at work."""
        streams = [len(range(group, self.slots, self.groups)) for group in range(self.groups)]
        return self.windows_seconds(streams, is_filling=False)


def machine_from_file(path: Path) -> Machine:
    """A machine that somebody measured, as JSON. Raises SettingsError for what is no such file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as failure:
        raise SettingsError(f"--machine {path} cannot be read: {failure.strerror or failure}") from None
    except ValueError as failure:
        raise SettingsError(f"--machine {path} is no JSON: {failure}") from None
    if not isinstance(found, dict):
        raise SettingsError(f"--machine {path} holds no fields: an object with {_names(_needed())} does")
    return machine_of(found, f"--machine {path}")


def machine_of(found: Mapping[str, Any], where: str) -> Machine:
    """Checked. Raises SettingsError that names the field and what works."""
    kinds = {each.name: each.type for each in fields(Machine)}
    if unknown := sorted(found.keys() - kinds.keys()):
        raise SettingsError(f"{where} has {_names(unknown)}, which no machine has: {_names(sorted(kinds))} work")
    if missing := [name for name in _needed() if name not in found]:
        raise SettingsError(f"{where} does not say {_names(missing)}: every machine needs {_names(_needed())}")
    for name, value in found.items():
        _check(name, value, kinds[name], where)
    machine = Machine(**found)
    if machine.groups > machine.slots:
        raise SettingsError(f"{where}: groups is {machine.groups} and slots {machine.slots}: at most one group a slot")
    if machine.stages > machine.layers:
        raise SettingsError(f"{where}: stages is {machine.stages} and layers {machine.layers}: a stage needs a layer")
    if machine.chunk_rows % 64:
        raise SettingsError(f"{where}: chunk_rows is {machine.chunk_rows}; a multiple of 64 works")
    if machine.windows_seconds([1], is_filling=False) <= 0 or machine.step_seconds(1) <= 0:
        raise SettingsError(f"{where}: a read and a window take no time; row_seconds and window_seconds above 0 work")
    return machine


def _check(name: str, value: Any, kind: Any, where: str) -> None:
    if kind is str:
        good, works = isinstance(value, str) and bool(value), "text"
    elif kind is int:
        good = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_COUNT
        works = f"a whole number from 1 to {MOST_COUNT:,}"
    else:
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_SECONDS
        works = f"seconds from 0 to {MOST_SECONDS:,.0f}"
    if not good:
        raise SettingsError(f"{where}: {name} is {value!r}; {works} work{'' if 'seconds' in works else 's'}")


def _needed() -> list[str]:
    return ["name", "layers", "chunk_rows", "row_seconds", "window_seconds", "stream_seconds"]


def _names(names: Collection[str]) -> str:
    return ", ".join(names)
