"""The published scenarios on a simulated machine, under the real scheduler, beside what was published of it.

Knows the numbers of one report (two RTX 5090, issue #2050 of the first Strata); knows no model.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from strata.bench.join_measures import MEASURES, SLOW_GAP, measured
from strata.bench.join_modes import JoinMode, Served
from strata.bench.joining import SCENARIOS, Joined, Scenario, follow_up, read_alone, run_scenario, two_joiners
from strata.bench.simulated_engine import SimulatedEngine
from strata.bench.simulated_machine import Machine
from strata.scheduler.read_modes import ReadMode
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings

# Fitted to the nine rows below, as docs/joining.md says; how a window's time is shared out between its group and each
# of the group's streams is assumed: the report knows four streams alone.
TWO_5090 = Machine(
    name="2x5090",
    layers=48,
    stages=2,
    groups=2,
    slots=6,
    chunk_rows=8192,
    row_seconds=9.40e-5,
    run_seconds=0.069,
    window_seconds=0.008,
    stream_seconds=0.002,
    drain_seconds=0.075,
    preparation_row_seconds=1.18e-5,
)
MACHINES = {TWO_5090.name: TWO_5090}
SECOND_SENT, QUESTION_SENT = 6.0, 1.0  # seconds, as published
STREAM_TOKENS = 930  # of each stream's reply: fitted, too

WHOLE, LAYERS = JoinMode(ReadMode.WHOLE), JoinMode(ReadMode.LAYERS)
PIECES_32K, PIECES_16K = JoinMode(ReadMode.PIECES, 32_768), JoinMode(ReadMode.PIECES, 16_384)
# Every row but one is published.
_TITLES = [each.title for each in MEASURES if each.title != SLOW_GAP]
PUBLISHED: dict[JoinMode, dict[str, float]] = {
    mode: dict(zip(_TITLES, values, strict=True))
    for mode, values in (
        (WHOLE, (12.2, 12.2, 289, 6.9, 6.1, 173, 5.4, 6.0, 5.7)),
        (PIECES_32K, (4.2, 13.3, 527, 8.1, 8.5, 166, 3.6, 7.3, 6.4)),
        (PIECES_16K, (2.6, 15.7, 793, 10.5, 12.0, 154, 1.8, 8.0, 7.1)),
    )
}


@dataclass(frozen=True)
class Simulation:
    """A machine under a scheduler with these settings; `groups` and slots are the machine's."""

    machine: Machine
    settings: EngineSettings

    def scheduler(self, mode: JoinMode) -> tuple[Scheduler, SimulatedEngine]:
        """One over an idle engine, whose clock stands at 0."""
        machine = self.machine
        is_piped = machine.stages > 1 and machine.groups > 1
        engine = SimulatedEngine(machine, drains=mode.mode is not ReadMode.LAYERS)
        limits = mode.limits(self.settings, Served(machine.slots, machine.chunk_rows, machine.groups, is_piped))
        return Scheduler(engine, limits, engine.clock, engine.sleep), engine

    def run(self, scenario: Scenario, mode: JoinMode) -> Joined:
        """On an idle engine."""
        scheduler, engine = self.scheduler(mode)
        return run_scenario(scenario, scheduler, made_up_prompt, engine.clock, engine.sleep)

    def join(self, mode: JoinMode, scenarios: Iterable[Scenario] | None = None) -> dict[str, Joined]:
        """The three scenarios as published, by name."""
        chosen = published_scenarios() if scenarios is None else scenarios
        return {scenario.name: self.run(scenario, mode) for scenario in chosen}


def published_scenarios() -> tuple[Scenario, ...]:
    """With the offsets in seconds that the report names."""
    found = two_joiners(SECOND_SENT, STREAM_TOKENS), follow_up(QUESTION_SENT), read_alone()
    assert [each.name for each in found] == list(SCENARIOS)
    return found


def made_up_prompt(name: str, rows: int) -> tuple[int, ...]:
    """Token ids that no other client's prompt begins with."""
    start = sum(place * byte for place, byte in enumerate(name.encode(), 1)) * 1_000_003
    return tuple(range(start, start + rows))


def errors_of(rows: dict[str, float], published: dict[str, float]) -> dict[str, float]:
    """Relative, by title: 0.1 where 10 % more is simulated than was published."""
    return {title: rows[title] / value - 1 for title, value in published.items()}


def simulated_rows(simulation: Simulation, mode: JoinMode) -> tuple[dict[str, float], Joined]:
    """All rows of a mode by title, and the scenario with streams, for a picture."""
    runs = simulation.join(mode)
    return measured(runs), runs["two_joiners"]
