"""`strata simulate`: prompts that join running replies on a machine that is not here, under the real scheduler.

Knows flags and tables; the machine's steps are in `strata.bench.simulated_engine`.
"""

import json as json_text
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from strata.bench.agents import Findings, live
from strata.bench.join_measures import MEASURES, measured
from strata.bench.join_modes import JoinMode, parse_modes
from strata.bench.join_plan import Sizes, scaled_scenarios
from strata.bench.joining import FIRST_ROWS, SCENARIOS, Joined
from strata.bench.joining_picture import Panel, draw_gaps
from strata.bench.simulated_machine import Machine, machine_from_file
from strata.bench.simulation import MACHINES, PUBLISHED, TWO_5090, WHOLE, Simulation, errors_of, published_scenarios
from strata.bench.spread import Spread
from strata.cli.console import printable, progress_bar
from strata.cli.exit_codes import EXIT_ENGINE_FAILED, EXIT_OK
from strata.cli.flags import GivenPath, WholeNumber
from strata.cli.join_table import join_table
from strata.cli.report_file import check_report_file, write_report
from strata.errors import SettingsError
from strata.settings import EngineSettings, resolve

MODES = "whole,pieces:32768,pieces:16384,layers"
MOST_HOURS = 1_000


def simulate(
    *,
    machine: str = TWO_5090.name,
    modes: str = MODES,
    max_gap_ms: float = EngineSettings.max_gap_ms,
    hours: WholeNumber | None = None,
    seed: WholeNumber = 0,
    picture: GivenPath | None = None,
    json: GivenPath | None = None,
) -> int:
    """Run prompts that join running replies on a simulated machine, in every read mode, beside what was published.

    Parameters
    ----------
    machine
        2x5090, the machine of the published table, or a JSON file with the costs of another one.
    modes
        whole, pieces:N and layers, with commas.
    max_gap_ms
        As for `strata serve`: what a pause of a running reply should not exceed, in the mode layers.
    hours
        Instead so many hours of random agents in the mode layers: nobody may starve, no slot may be lost, no gap may be
        over its bound.
    seed
        Of the agents.
    picture
        Write every stream's gaps over time to this file, as an SVG.
    json
        Also write everything to this file.
    """
    chosen = parse_modes(modes)
    check_report_file(json)
    check_report_file(picture, "--picture")
    if hours is not None and not 1 <= hours <= MOST_HOURS:
        raise SettingsError(f"--hours {hours} does not work; a whole number from 1 to {MOST_HOURS:,} does")
    simulation = Simulation(_machine(machine), resolve({"max_gap_ms": max_gap_ms}).engine)
    console = Console(highlight=False)
    if hours is not None:
        if picture is not None:
            raise SettingsError("--picture shows scenarios, and --hours runs none: leave one of them out")
        return _live(simulation, hours, seed, json, console)
    runs = _join(simulation, chosen)
    found = {mode: measured(each) for mode, each in runs.items()}
    _show(simulation.machine, found, console)
    _write(simulation, found, runs, picture, json)
    return EXIT_OK


def _machine(given: str) -> Machine:
    """One that is known by name, or a file's. Raises SettingsError for neither."""
    if given in MACHINES:
        return MACHINES[given]
    if not given or not (Path(given).exists() or given.endswith(".json")):
        raise SettingsError(f"--machine {given} does not work; {', '.join(MACHINES)} or a JSON file does")
    return machine_from_file(Path(given))


def _join(simulation: Simulation, modes: tuple[JoinMode, ...]) -> dict[JoinMode, dict[str, Joined]]:
    """By mode and scenario."""
    if simulation.machine == TWO_5090:
        scenarios = published_scenarios()
    else:
        scenarios = scaled_scenarios(tuple(SCENARIOS), Sizes(), lambda scenario: simulation.run(scenario, WHOLE))
    return {mode: simulation.join(mode, scenarios) for mode in modes}


def _show(machine: Machine, found: dict[JoinMode, dict[str, float]], console: Console) -> None:
    sizes = (
        f"{machine.stages} stages, {machine.slots} slots in {machine.groups} groups, chunks of {machine.chunk_rows:,}"
    )
    console.print(Text(printable(f"{machine.name}, simulated: {sizes}; nothing here was measured")), soft_wrap=True)
    values = {mode: {title: Spread.of([value]) for title, value in rows.items()} for mode, rows in found.items()}
    published = PUBLISHED if machine == TWO_5090 else None
    console.print(join_table(MEASURES, values, FIRST_ROWS, published))
    console.print(Text("seconds, tokens, tokens/s; wanted: beside whole, of a real machine"))
    errors = [
        error for mode, rows in found.items() for error in errors_of(rows, (published or {}).get(mode, {})).values()
    ]
    if errors:
        console.print(Text(f"largest error beside what was published: {max(map(abs, errors)):.1%}"))


def _write(
    simulation: Simulation,
    found: dict[JoinMode, dict[str, float]],
    runs: dict[JoinMode, dict[str, Joined]],
    picture: Path | None,
    json: Path | None,
) -> None:
    name = simulation.machine.name
    panels = [Panel(mode.name, each["two_joiners"]) for mode, each in runs.items()]
    if picture is not None:
        write_report(picture, draw_gaps(f"{name}, simulated: two prompts join four streams", panels), "--picture")
    told: dict[str, Any] = {"machine": asdict(simulation.machine), "max_gap_ms": simulation.settings.max_gap_ms}
    told["modes"] = {mode.name: rows for mode, rows in found.items()}
    if simulation.machine == TWO_5090:
        told["published"] = {mode.name: rows for mode, rows in PUBLISHED.items()}
    write_report(json, json_text.dumps(told, indent=2))


def _live(simulation: Simulation, hours: int, seed: int, json: Path | None, console: Console) -> int:
    """Exit code 1 if anything happened that must not."""
    with progress_bar() as progress:
        found = live(simulation, hours, seed, progress)
    for line in findings_lines(simulation.machine, hours, seed, found):
        console.print(Text(printable(line)), soft_wrap=True)
    write_report(json, json_text.dumps({"hours": hours, "seed": seed, **asdict(found)}, indent=2))
    return EXIT_OK if found.is_good else EXIT_ENGINE_FAILED


def findings_lines(machine: Machine, hours: int, seed: int, found: Findings) -> list[str]:
    """What hours of agents came to."""
    return [
        f"{machine.name}, simulated: {hours} hours of random agents, seed {seed}, in the mode layers",
        f"{found.requests:,} requests, {found.cancelled:,} of them cancelled; {found.prompt_rows:,} rows read, "
        f"{found.cached_rows:,} more kept from before; {found.windows:,} windows; {found.give_ways:,} reads gave way",
        f"longest gap {1e3 * found.longest_gap:.1f} ms (bound {1e3 * found.bound:.1f}), longest wait for a first token "
        f"{found.longest_wait:.1f} s",
        f"starved {found.starved}, lost slots {found.lost_slots}, gaps over the bound {found.gaps_over}, wrong replies "
        f"{found.wrong_replies}: {'all must be 0, and are' if found.is_good else 'all must be 0'}",
    ]
