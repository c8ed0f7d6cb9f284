"""`strata bench join`: prompts that join running replies, in every read mode, on this machine.

Knows flags, the table and the picture; what runs is in `strata.bench.join_bench`.
"""

import json as json_text
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from strata.bench.join_bench import JoinBench, JoinRuns
from strata.bench.join_made import MadeShape, made_engine
from strata.bench.join_measures import measures_of
from strata.bench.join_model import JoinEngine, load_engine
from strata.bench.join_modes import JoinMode, parse_modes, parse_names
from strata.bench.join_plan import Sizes
from strata.bench.joining import FIRST_ROWS, SCENARIOS, STREAMS, Joined
from strata.bench.joining_picture import Panel, draw_gaps
from strata.bench.synthetic_model import AskedRoom, require_room
from strata.cli.bench_on_card import MadeModel, use_kept_kernels
from strata.cli.console import printable, progress_bar, report_notices, write_line
from strata.cli.exit_codes import EXIT_ENGINE_FAILED, EXIT_OK
from strata.cli.flags import FLAT, EngineFlags, GivenPath, WholeNumber, said
from strata.cli.join_table import join_table
from strata.cli.report_file import check_report_file, write_report
from strata.engine.stage_devices import asked_cuts, is_staged, stage_devices
from strata.engine.tier_loading import threads_beside_a_card
from strata.errors import SettingsError
from strata.hardware import read_cpu, read_gpus, why_no_gpu
from strata.models.device.layer_split import LayerSplit
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings, resolve

MOST_ROUNDS = 100
MOST_SCALE = 8.0
SLOTS = STREAMS + 2
LONGEST_REPLY = 4_096 + 256  # tokens of a stream, with its prompt
LARGEST_CHUNK = 8_192
CPU_SCALE = 1 / 32
PIECES = (2, 4)  # of the first prompt


@dataclass(frozen=True)
class JoinFlags:
    """What runs.

    Parameters
    ----------
    scenarios
        two_joiners, followup and read_alone, with commas.
    modes
        whole, pieces:N and layers, with commas; if not given all of them, with pieces of half and a quarter of the
        first prompt.
    repeat
        Rounds of all scenarios in all modes.
    scale
        Of the prompts: 1 is 65,536, 32,768 and 45,000 tokens. On the CPU a thirty-second of that if not given.
    stream_tokens
        Of each running reply; if not given as many as take about the time of both reads.
    determinism
        Instead SHA-256 of six greedy answers in every mode, twice: all must be the same.
    seed
        Of the prompts.
    """

    scenarios: str = ",".join(SCENARIOS)
    modes: str | None = None
    repeat: WholeNumber = 3
    scale: float | None = None
    stream_tokens: WholeNumber | None = None
    determinism: Annotated[bool, Parameter(negative="")] = False
    seed: WholeNumber = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of the scenarios. Raises SettingsError for what is none."""
        return parse_names(self.scenarios, tuple(SCENARIOS), "--scenarios")

    def modes_of(self, first_rows: int) -> tuple[JoinMode, ...]:
        """As given. Raises SettingsError for what is no mode."""
        pieces = ",".join(f"pieces:{max(1, first_rows // part)}" for part in PIECES)
        return parse_modes(f"whole,{pieces},layers" if self.modes is None else self.modes)

    def sizes(self, *, is_on_cpu: bool) -> Sizes:
        """On a card as published, unless something else was said."""
        usual = CPU_SCALE if is_on_cpu else 1.0
        return Sizes(usual if self.scale is None else self.scale, self.stream_tokens)

    def check(self) -> None:
        """Raises SettingsError for the first thing that does not work."""
        _ = self.names, self.modes_of(FIRST_ROWS)
        if not 1 <= self.repeat <= MOST_ROUNDS:
            raise SettingsError(f"--repeat {self.repeat} does not work; a whole number from 1 to {MOST_ROUNDS} does")
        if self.scale is not None and not 0 < self.scale <= MOST_SCALE:
            raise SettingsError(f"--scale {self.scale:g} does not work; a number above 0, up to {MOST_SCALE:g}, does")
        if self.stream_tokens is not None and self.stream_tokens < 2:
            raise SettingsError(f"--stream-tokens {self.stream_tokens} does not work; 2 or more do")


@dataclass(frozen=True)
class MadeFlags:
    """A model of the published shape and random weights instead of one from files.

    Parameters
    ----------
    layers
        Layers of a model of the published shape, made with random weights on this PC's cards; the release has 48.
    cache
        With --layers: percent of each layer's experts that have a seat on their card.
    routing
        With --layers: uniform, every expert alike; popular: as in one topic of `strata trace synth`.
    tiny
        With --layers: a model of a few megabytes instead; without a card on the CPU's stages, which are slow.
    """

    layers: WholeNumber | None = None
    cache: WholeNumber = 75
    routing: Literal["uniform", "popular"] = "uniform"
    tiny: Annotated[bool, Parameter(negative="")] = False

    def check(self) -> None:
        """Raises SettingsError for what goes with --layers alone, and for numbers that do not work."""
        if self.layers is None:
            for each in fields(self)[1:]:
                if getattr(self, each.name) != each.default:
                    raise SettingsError(f"--{each.name} goes with --layers: without it the model comes from files")
        if not 0 <= self.cache <= 100:
            raise SettingsError(f"--cache {self.cache} does not work; a whole percent from 0 to 100 does")


def join(
    *,
    model: GivenPath | None = None,
    made: Annotated[MadeFlags | None, FLAT] = None,
    runs: Annotated[JoinFlags | None, FLAT] = None,
    picture: GivenPath | None = None,
    json: GivenPath | None = None,
    engine: Annotated[EngineFlags | None, FLAT] = None,
) -> int:
    """Let prompts join running replies in every read mode, modes in turns, and show how long the replies stood still.

    Parameters
    ----------
    model
        A model directory or GGUF file; the small model that ships with strata if not given.
    picture
        Write every stream's gaps over time to this file, as an SVG.
    json
        Also write everything to this file.
    """
    runs, made = runs or JoinFlags(), made or MadeFlags()
    runs.check()
    made.check()
    check_report_file(json)
    check_report_file(picture, "--picture")
    if picture is not None and (runs.determinism or "two_joiners" not in runs.names):
        raise SettingsError("--picture shows the scenario two_joiners, which does not run here: leave it out")
    settings = _settings(said(engine))
    if made.layers is None:
        with progress_bar() as progress:
            loaded = load_engine(model, settings, progress)
        report_notices(loaded.notices)
        return _measure(loaded, runs, picture, json)
    if model is not None:
        raise SettingsError("--model and --layers are two models: leave one of them out")
    shape = _shape(made, made.layers, runs, settings)
    threads = settings.threads or threads_beside_a_card(read_cpu().usable_cores)
    with made_engine(shape, settings, threads) as loaded:
        return _measure(loaded, runs, picture, json)


def _shape(made: MadeFlags, layers: int, runs: JoinFlags, settings: EngineSettings) -> MadeShape:
    """What is made: room for the longest prompt. Raises SettingsError or ModelError for what has no room."""
    model = MadeModel(layers, routing=made.routing, tiny=made.tiny)
    model.check()
    has_card = torch.cuda.is_available()
    model.require_card(has_card=has_card)
    sizes = runs.sizes(is_on_cpu=False)
    context = settings.context or round(sizes.scale * FIRST_ROWS) + LONGEST_REPLY
    split, devices = _stages(layers, settings, has_card=has_card)
    slots, chunk_rows = settings.slots or SLOTS, settings.chunk_rows or LARGEST_CHUNK
    if has_card and split.stages == 1:
        require_room(
            model.config, model.form, AskedRoom(slots, context, made.cache, chunk_rows, CellKind(settings.kv_kind))
        )
    if has_card:
        use_kept_kernels()
    groups = settings.groups_of(slots, usual=2)
    return MadeShape(
        model.config, model.form, model.is_popular, made.cache, split, devices, slots, context, chunk_rows, groups
    )


def _stages(layers: int, settings: EngineSettings, *, has_card: bool) -> tuple[LayerSplit, tuple[torch.device, ...]]:
    """As the settings say, in even runs unless they name layers; else all on one. Raises SettingsError."""
    if not is_staged(settings):
        return LayerSplit(layers), (torch.device("cuda", 0) if has_card else torch.device("cpu"),)
    gpus = read_gpus()
    names = [each.name for each in stage_devices(settings, gpus, None if gpus else why_no_gpu())]
    cuts = asked_cuts(settings)
    if cuts is None:
        cuts = tuple(round(layers * number / len(names)) for number in range(1, len(names)))
    return LayerSplit.of(layers, cuts), tuple(map(torch.device, names))


def _measure(loaded: JoinEngine, runs: JoinFlags, picture: Path | None, json: Path | None) -> int:
    """Run, show and write what is wanted."""
    bench = JoinBench(
        loaded.engine, loaded.served, loaded.settings, runs.sizes(is_on_cpu=loaded.device == "cpu"), runs.seed
    )
    modes = runs.modes_of(round(bench.sizes.scale * FIRST_ROWS))
    console = Console(highlight=False)
    if runs.determinism:
        return _show_answers(loaded, bench, modes, console)
    with progress_bar() as progress:
        if progress is None:
            write_line(f"running {len(runs.names)} scenarios in {len(modes)} modes, {runs.repeat} rounds")
        found = bench.measure(runs.names, modes, runs.repeat, progress)
    _show(loaded, bench, found, console)
    if picture is not None:
        panels = [Panel(each.mode.name, each.runs["two_joiners"][0]) for each in found]
        title = f"{loaded.name} on {loaded.device}: two prompts join {STREAMS} streams, the first round"
        write_report(picture, draw_gaps(title, panels), "--picture")
    write_report(json, json_text.dumps(_as_json(loaded, bench, found), indent=2))
    return EXIT_OK


def _settings(given: dict[str, Any]) -> EngineSettings:
    """Of the engine: as many slots as streams and joiners, unless something else was said."""
    for name in ("read_mode", "piped_read_piece"):
        if given.get(name) is not None:
            flag = name.replace("_", "-")
            raise SettingsError(f"--{flag} {given[name]} does not work here: every mode of --modes has its turn")
    given["slots"] = SLOTS if given.get("slots") is None else given["slots"]
    settings = resolve(given).engine
    if settings.slots is not None and settings.slots < SLOTS:
        raise SettingsError(f"--slots {settings.slots} does not work: {STREAMS} streams and two joiners need {SLOTS}")
    return settings


def _show(loaded: JoinEngine, bench: JoinBench, found: Sequence[JoinRuns], console: Console) -> None:
    """The table, and what ran."""
    for line in [_name(loaded), *_scenario_lines(bench, len(next(iter(found[0].runs.values()))))]:
        console.print(Text(printable(line)), soft_wrap=True)
    first = next((each.joiners[0].prompt_rows for each in bench.scenarios if each.streams), FIRST_ROWS)
    values = {each.mode: each.spreads for each in found}
    console.print(join_table(measures_of([each.name for each in bench.scenarios]), values, first))
    console.print(Text("seconds, tokens, tokens/s; wanted: beside whole"))


def _name(loaded: JoinEngine) -> str:
    served, settings = loaded.served, loaded.settings
    return (
        f"{loaded.name} on {loaded.device}: {served.slots} slots in {served.groups} groups, chunks of "
        f"{served.chunk_rows:,}, max gap {settings.max_gap_ms:g} ms"
    )


def _scenario_lines(bench: JoinBench, rounds: int) -> list[str]:
    lines = []
    for scenario in bench.scenarios:
        clients = [f"{each.name} {each.prompt_rows:,} tokens at {each.sent:.2f} s" for each in scenario.joiners]
        streams = f"{scenario.streams} streams of {scenario.stream_tokens} tokens; " if scenario.streams else ""
        lines.append(f"{scenario.name}: {streams}{', '.join(clients)}")
    return [*lines, f"medians of {rounds} rounds, modes in turns"]


def _show_answers(loaded: JoinEngine, bench: JoinBench, modes: Sequence[JoinMode], console: Console) -> int:
    """The hashes; exit code 1 if modes differ."""
    console.print(Text(printable(_name(loaded))), soft_wrap=True)
    found = {mode.name: bench.answers(mode) for mode in modes}
    for name, hashes in found.items():
        console.print(Text(f"{name:16} {' '.join(each[:8] for each in hashes)}"), soft_wrap=True)
    is_same = len({tuple(hashes) for hashes in found.values()}) == 1
    console.print(Text("all modes give the same six answers, twice" if is_same else "modes give different answers"))
    return EXIT_OK if is_same else EXIT_ENGINE_FAILED


def _as_json(loaded: JoinEngine, bench: JoinBench, found: Sequence[JoinRuns]) -> dict[str, Any]:
    """Every round's numbers, and the gaps of the streams."""
    return {
        "model": loaded.name,
        "device": loaded.device,
        "served": asdict(loaded.served),
        "max_gap_ms": loaded.settings.max_gap_ms,
        "scenarios": [asdict(scenario) for scenario in bench.scenarios],
        "modes": {
            each.mode.name: {
                "measures": {title: asdict(spread) for title, spread in each.spreads.items()},
                "runs": {name: [_run_as_json(run) for run in runs] for name, runs in each.runs.items()},
            }
            for each in found
        },
    }


def _run_as_json(run: Joined) -> dict[str, Any]:
    began = run.began
    return {name: {"sent": seen.sent - began, "at": [at - began for at in seen.at]} for name, seen in run.seen.items()}
