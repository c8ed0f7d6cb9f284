"""`strata trace`: records which experts a model chooses, and replays what a cache of them would have found.

Knows flags and the table; recording is in `strata.bench.routing`, policies are in `strata.experts.replay`.
"""

import json as json_text
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.cli.console import printable, progress_bar, write_line
from strata.cli.flags import FLAT, EngineFlags, GenerationFlags, GivenPath, WholeNumber, said
from strata.cli.prompts import read_prompt
from strata.cli.report_file import check_report_file, write_report
from strata.errors import RequestError, SettingsError, TraceError
from strata.experts.cache import SwapRule
from strata.experts.replay import Comparison, Heat, Outcome, Requests, compare_policies, requests_of
from strata.experts.synthetic_trace import UNIFORM, RoutingLaw, RoutingShape, draw_routing
from strata.experts.trace import MOST_BLOB_BYTES, Trace, load_trace, save_trace
from strata.settings import resolve
from strata.weights.new_path import folder_of_new

app = App(name="trace", help="Record which experts a model chooses; replay what a cache of them would have found.")

SIZES = (10.0, 25.0, 50.0, 75.0, 90.0)
LEARNED_PERCENT = 50
PUBLISHED_BLOB_BYTES = 2_764_800  # 3 matrices of 640 x 2560 at 4.5 bits


@app.command
def record(
    *prompts: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: GivenPath,
    model: GivenPath | None = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    engine: Annotated[EngineFlags | None, FLAT] = None,
    generation: Annotated[GenerationFlags | None, FLAT] = None,
) -> None:
    """Answer prompts on the CPU and write down which experts every row took.

    Parameters
    ----------
    prompts
        What to answer, each in a conversation of its own; - reads one from stdin.
    out
        The file to write, as in talk.trace; it must not exist, its folder must.
    model
        A model directory or GGUF file; the small model that ships with strata if not given.
    raw
        Continue the prompts as text instead of answering them as messages.
    """
    if not prompts:
        raise RequestError("there is no prompt: give some text, or - for stdin")
    for text in prompts:
        if text.startswith("-") and text != "-":  # a flag that was mistyped must not be answered
            raise RequestError(f"there is no flag {text}; a prompt that begins with a hyphen can come from stdin (-)")
    texts = [read_prompt(text, raw=raw, what=f"prompt {number}") for number, text in enumerate(prompts, 1)]
    settings = resolve(said(engine, generation))
    folder_of_new(out)  # refused now, not after the recording
    from strata.bench.routing import record_routing  # needs the engine, which replays do without

    try:
        with progress_bar() as progress:
            trace = record_routing(model, settings, texts, raw=raw, on_progress=progress)
    except KeyboardInterrupt:
        write_line("interrupted: nothing was written")
        raise
    save_trace(trace, out)
    decoded = int(np.count_nonzero(~trace.is_read))
    talks = f"{len(texts)} conversation{'s' * (len(texts) > 1)}"
    write_line(f"wrote {out}: {len(trace.steps):,} rows of {talks}, {decoded:,} of them decoded; {_shape(trace)}")


@app.command
def replay(
    file: GivenPath,
    /,
    *,
    percent: Annotated[tuple[float, ...], Parameter(negative="")] = SIZES,
    profile: GivenPath | None = None,
    learn: WholeNumber | None = None,
    every: WholeNumber = SwapRule.every,
    most_swaps: WholeNumber = SwapRule.most_swaps,
    margin: float = SwapRule.margin,
    decay: float = SwapRule.decay,
    again: float = SwapRule.again,
    landing: WholeNumber = 1,
    json: GivenPath | None = None,
) -> None:
    """Show what share of a trace's experts seats in a card's memory would have held, under several policies.

    Parameters
    ----------
    file
        A trace of `strata trace record` or `strata trace synth`.
    percent
        Room for that much of all experts; may be given several times.
    profile
        Another trace of the same model that says which experts are popular; all windows of FILE are judged then.
    learn
        Percent of FILE's windows that say which experts are popular, the others are judged; 0: nobody knows, 50 if not
        given.
    every
        Windows between two rounds of swaps.
    most_swaps
        Most swaps of a round.
    margin
        By how much more often than a resident a miss must have been asked for.
    decay
        What is left of every count after a round.
    again
        What a window counts that asks for an expert as the one before it did.
    landing
        Windows that run while an expert is copied.
    json
        Also write everything to this file.
    """
    rule = SwapRule(every, most_swaps, margin, decay, again)
    _check_numbers(percent, learn, landing, has_profile=profile is not None)
    check_report_file(json)
    trace = load_trace(file)
    heat, judged, source = _split(trace, profile, LEARNED_PERCENT if learn is None else learn)
    found = []
    with progress_bar() as progress:
        for number, size in enumerate(percent):
            found.append(compare_policies(judged, heat, trace.blob_bytes, size, rule, landing))
            if progress is not None:
                progress("replaying", number + 1, len(percent))
    facts = {
        "model": trace.model,
        "layers": judged.layers,
        "experts": trace.experts,
        "profile": source,
        "windows": judged.windows,
        "experts_a_window": len(judged.keys) / judged.windows,
        "rule": asdict(rule),
        "landing_windows": landing,
    }
    _show(trace, facts, found)
    write_report(json, json_text.dumps(facts | {"sizes": [_as_json(each) for each in found]}, indent=2))


@app.command
def synth(
    out: GivenPath,
    /,
    *,
    routing: Literal["popular", "uniform"] = "popular",
    windows: WholeNumber = 2000,
    conversations: WholeNumber = 1,
    layers: WholeNumber = 48,
    experts: WholeNumber = 512,
    experts_per_row: WholeNumber = 10,
    blob_bytes: WholeNumber = PUBLISHED_BLOB_BYTES,
    seed: WholeNumber = 0,
) -> None:
    """Draw a trace of a model that nobody has a recording of. The same arguments give the same trace.

    Parameters
    ----------
    out
        The file to write, as in drawn.trace; it must not exist, its folder must.
    routing
        popular: some experts are popular, topics change, a token takes some of the last one's; uniform: nothing of it.
    windows
        Decode windows.
    conversations
        Rows of a window, one of each conversation.
    layers
        Layers with experts.
    experts
        Experts of a layer.
    experts_per_row
        Experts that a row takes in a layer.
    blob_bytes
        Bytes of an expert.
    seed
        Another seed draws another trace.
    """
    shape = RoutingShape(windows, conversations, layers, experts, experts_per_row)
    if not 1 <= blob_bytes <= MOST_BLOB_BYTES:
        raise SettingsError(f"--blob-bytes {blob_bytes} does not work; a number from 1 to {MOST_BLOB_BYTES:,} does")
    law = replace(UNIFORM if routing == "uniform" else RoutingLaw(), seed=seed)
    folder_of_new(out)
    ids = draw_routing(law, shape)
    numbers = np.repeat(np.arange(windows, dtype=np.int32), conversations)
    trace = Trace(
        model=f"drawn, {routing}",
        experts=experts,
        blob_bytes=(blob_bytes,) * layers,
        ids=ids.reshape(windows * conversations, layers, experts_per_row),
        steps=numbers,
        is_read=np.zeros(len(numbers), bool),
        conversations=np.tile(np.arange(conversations, dtype=np.int32), windows),
        positions=numbers,
    )
    save_trace(trace, out)
    write_line(f"wrote {out}: {windows:,} windows of {conversations} rows; {_shape(trace)}")


def _check_numbers(percent: tuple[float, ...], learn: int | None, landing: int, *, has_profile: bool) -> None:
    for size in percent:
        if not 0 < size <= 100:
            raise SettingsError(f"--percent {size:g} does not work; a number above 0 up to 100 does")
    if learn is not None and has_profile:
        raise SettingsError("give --profile or --learn: with a profile, all windows of the trace are judged")
    if learn is not None and not 0 <= learn < 100:
        raise SettingsError(f"--learn {learn} does not work; a whole number from 0 to 99 does")
    if not 0 <= landing <= 1000:
        raise SettingsError(f"--landing {landing} does not work; a whole number from 0 to 1000 does")


def _split(trace: Trace, profile: Path | None, learn: int) -> tuple[Heat, Requests, str]:
    """What the profile saw, what is judged, and in words where the profile is from."""
    decoded = requests_of(trace.ids[~trace.is_read], trace.steps[~trace.is_read], trace.experts)
    if profile is not None:
        other = load_trace(profile)
        _require_same_model(profile, other, trace)
        learned = requests_of(other.ids[~other.is_read], other.steps[~other.is_read], other.experts)
        cut, source = 0, printable(str(profile))
    else:
        cut = decoded.windows * learn // 100
        learned = decoded.between(0, cut)
        source = f"the first {cut:,} windows" if cut else "none"
    if cut == decoded.windows:
        raise TraceError(f"the trace of {trace.model} has {decoded.windows} decode windows: there is none to judge")
    return learned.counts(), decoded.between(cut, decoded.windows), source


def _require_same_model(profile: Path, other: Trace, trace: Trace) -> None:
    for what, theirs, ours in (
        ("model", other.model, trace.model),
        ("experts", other.experts, trace.experts),
        ("layers", other.ids.shape[1], trace.ids.shape[1]),
    ):
        if theirs != ours:
            raise TraceError(f"{profile} is of another model: its {what} is {theirs!r}, the trace's {ours!r}")


def _shape(trace: Trace) -> str:
    layers, ranks = trace.ids.shape[1:]
    return f"{layers} layers of {trace.experts} experts, {ranks} a row"


def _show(trace: Trace, facts: dict[str, Any], found: list[Comparison]) -> None:
    console, rule = Console(highlight=False), facts["rule"]
    lines = (
        f"{printable(trace.model)}: {_shape(trace)}, {facts['experts_a_window']:,.0f} distinct ones a window",
        f"{facts['windows']:,} windows judged; profile: {facts['profile']}; adaptive: every {rule['every']} window(s) "
        f"at most {rule['most_swaps']} swaps, margin {rule['margin']:g}, decay {rule['decay']:g}, "
        f"again {rule['again']:g}; copies take {facts['landing_windows']} window(s)",
    )
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")
    names = ("Belady", "LRU", "best set", "learned", "adaptive")
    heads = ("room", "seats", *(f"{name}\nhits %" for name in names), "LRU\ncopies", "adaptive\ncopies", "adaptive\nMB")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for each in found:
        hits = (each.belady, each.lru, each.best_set, each.learned_set, each.adaptive)
        copies = (each.lru.copies, each.adaptive.copies)
        table.add_row(
            f"{each.percent:g} %",
            f"{each.seats:,}",
            *(f"{100 * outcome.hit_rate:.1f}" for outcome in hits),
            *(f"{count / facts['windows']:,.1f}" for count in copies),
            f"{each.adaptive.copied_bytes / facts['windows'] / 1e6:,.2f}",
        )
    console.print(table)
    if note := seatless_note(trace, [each.percent for each in found if each.seats == 0]):
        console.print(Text(note), soft_wrap=True)
    console.print(
        Text(
            "copies and MB are a window's. Belady, the limit, copies in no time; the best set was chosen with "
            "hindsight, the learned one by the profile."
        ),
        soft_wrap=True,
    )


def seatless_note(trace: Trace, percents: Sequence[float]) -> str | None:
    """Why rows of the table are all zeros; None if no room is too small for an expert."""
    if not percents:
        return None
    experts = trace.experts * len(trace.blob_bytes)
    least = 100 * min(trace.blob_bytes) / (sum(trace.blob_bytes) * trace.experts)
    rooms = ", ".join(f"{each:g} %" for each in percents)
    return f"no seats with room for {rooms}: one of these {experts:,} experts is {least:.3g} %, so nothing can be hit."


def _as_json(each: Comparison) -> dict[str, Any]:
    policies = ("belady", "lru", "best_set", "learned_set", "adaptive")
    outcomes: dict[str, Outcome] = {name: getattr(each, name) for name in policies}
    return {"percent": each.percent, "seats": each.seats} | {
        name: asdict(outcome) | {"hit_rate": outcome.hit_rate} for name, outcome in outcomes.items()
    }
