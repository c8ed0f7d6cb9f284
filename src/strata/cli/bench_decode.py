"""`strata bench decode`: one token for each of some conversations, window after window, beside what memory allows.

Knows flags and the table; what is measured and when it may be shown is in `strata.bench.decode`.
"""

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.decode import (
    POPULAR_WINDOWS,
    ROUTED_WINDOWS,
    DecodePlan,
    DecodeResult,
    DecodeSpeed,
    measure_decode,
    speed_as_json,
)
from strata.bench.popular_routing import LawfulRouting
from strata.bench.spread import Spread
from strata.bench.synthetic_model import AskedRoom, make_model, require_room
from strata.cli.bench_on_card import MadeModel, Turns, copy_rate, device_of, made_lines, use_kept_kernels
from strata.cli.bench_pages import Pages, decode_paged
from strata.cli.bench_tiers import Tiers, decode_in_tiers
from strata.cli.console import progress_bar, write_line
from strata.cli.flags import FLAT, GivenPath
from strata.cli.model_report import gib
from strata.cli.report_file import check_report_file, write_report


def decode(
    *,
    made: Annotated[MadeModel | None, FLAT] = None,
    turns: Annotated[Turns | None, FLAT] = None,
    tiers: Annotated[Tiers | None, FLAT] = None,
    pages: Annotated[Pages | None, FLAT] = None,
    profile: Annotated[bool, Parameter(negative="")] = False,
    json: GivenPath | None = None,
) -> None:
    """Decode with a model of the published shape and random weights, made in the card's memory.

    Parameters
    ----------
    profile
        Also show how long every step of every kind of layer takes, outside graphs.
    json
        Also write everything to this file.
    """
    has_card = torch.cuda.is_available()
    made, turns, tiers, pages = made or MadeModel(), turns or Turns(), tiers or Tiers(), pages or Pages()
    turns.check()
    made.check()
    tiers.check(turns)
    pages.check(made, turns, has_tiers=tiers.cache is not None)
    check_report_file(json)
    made.require_card(has_card=has_card)
    if pages.kv_resident is not None:
        decode_paged(made, turns, pages, json, with_profile=profile, has_card=has_card)
    elif tiers.cache is None:
        _decode_on_card(made, turns, json, with_profile=profile, has_card=has_card)
    else:
        decode_in_tiers(made, turns, tiers, json, with_profile=profile, has_card=has_card)


def _decode_on_card(made: MadeModel, turns: Turns, json: Path | None, *, with_profile: bool, has_card: bool) -> None:
    """All experts in the card's memory."""
    contexts, slots = turns.context or DecodePlan.contexts, turns.slots or DecodePlan.slots
    routed_windows = POPULAR_WINDOWS if made.is_popular else ROUTED_WINDOWS
    plan = DecodePlan(
        contexts,
        slots,
        turns.rounds,
        turns.windows,
        with_profile,
        routed_windows,
        made.seed,
        made.is_popular,
        made.cell_kind,
    )
    if has_card:
        asked = AskedRoom(max(slots), max(contexts) + 2 * turns.windows, kv_kind=made.cell_kind)
        require_room(made.config, made.form, asked)
        use_kept_kernels()
    model = make_model(made.config, made.form, device_of(has_card=has_card), is_popular=made.is_popular)
    copy_gb_per_s = copy_rate() if has_card else None
    with progress_bar() as progress:
        if progress is None:
            write_line(_beginning(plan, has_card=has_card))
        result = measure_decode(model, plan, copy_gb_per_s, progress)
    facts = {**made.facts(has_card=has_card), "copy_gb_per_s": copy_gb_per_s, "plan": asdict(plan)}
    show(facts, result, Console(highlight=False))
    hottest = {"hottest_quarter": result.hottest_quarter, "hottest_half": result.hottest_half}
    law = None if result.law is None else asdict(result.law)
    everything = {**facts, **hottest, "law": law, "speeds": [speed_as_json(speed) for speed in result.speeds]}
    write_report(json, json_text.dumps(everything, indent=2))


def _beginning(plan: DecodePlan, *, has_card: bool) -> str:
    """What runs now, where no bar shows it."""
    windows = len(plan.contexts) * len(plan.slots) * (plan.rounds + 1) * plan.windows
    told = f"decoding {windows:,} windows of up to {max(plan.slots)} conversations"
    return told if has_card else f"{told}; without a card this may take minutes"


def show(facts: dict[str, Any], result: DecodeResult, console: Console) -> None:
    """Print the table."""
    plan, speeds = facts["plan"], result.speeds
    for text in made_lines(facts, f"{plan['rounds']} rounds of {plan['windows']} windows in turns"):
        console.print(text, soft_wrap=True)
    console.print(_table(speeds))
    for line in [*routing_notes(facts["routing"], result), *notes(speeds)]:
        console.print(Text(line), soft_wrap=True)
    for speed in speeds:
        for line in speed.profile:
            console.print(Text(line), soft_wrap=True)


def routing_notes(routing: str, result: DecodeResult) -> list[str]:
    """How many different experts windows took, beside what chance gives, and how much the hottest got."""
    by_slots = {speed.slots: speed for speed in reversed(result.speeds)}
    told = [
        f"{slots} slot{'s' * (slots > 1)} {speed.distinct:.1f} ({speed.expected:.1f})"
        for slots, speed in sorted(by_slots.items())
    ]
    quarter, half = 100 * result.hottest_quarter, 100 * result.hottest_half
    return [
        f"routing {routing}: different experts of a layer (as many where all are alike): {', '.join(told)}; of all "
        f"choices the hottest 25 % of a layer's experts got {quarter:.0f} %, the hottest 50 % {half:.0f} %",
        *([] if result.law is None else [_law_note(result.law)]),
    ]


def _law_note(law: LawfulRouting) -> str:
    """What popular experts were made for."""
    told = ", ".join(f"{slots} slot{'s' * (slots > 1)} {count:.1f}" for slots, count in sorted(law.distinct.items()))
    quarter, half = 100 * law.hottest_quarter, 100 * law.hottest_half
    return f"by the law of strata trace synth: {told}; hottest 25 % {quarter:.0f} %, hottest 50 % {half:.0f} %"


def notes(speeds: Sequence[DecodeSpeed]) -> list[str]:
    """What the columns of kernels mean, and how many kernels a layer of each kind runs; nothing without a card."""
    if all(speed.gap_us is None for speed in speeds):
        return []
    lines = [
        "own ms: the kernels' own times, added up; gap us: what a window takes beyond them, for each of its kernels. "
        "Below 0 kernels overlap: each starts, and asks for its weights, while the one before it still runs."
    ]
    by_slots = {speed.slots: speed.layer_kernels for speed in speeds}
    for slots, kinds in by_slots.items():
        told = [f"{kind} {_counts(counts)}" for kind, counts in kinds.items()]
        lines.append(f"kernels of a layer, {slots} slots: {', '.join(told)}")
    return lines


def _counts(layers_by_count: Mapping[int, int]) -> str:
    """Such as `15 (8 layers) or 21 (1 layer)`."""
    counts = sorted(layers_by_count.items())
    return " or ".join(f"{count} ({layers} layer{'s' * (layers > 1)})" for count, layers in counts)


def _table(speeds: list[DecodeSpeed]) -> Table:
    """Fits into 80 columns; see `notes`."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")
    for name in ("context", "slots", "tok/s", "ms a window", "needs", "limit ms", "share", "own ms", "gap us"):
        table.add_column(name, justify="right", no_wrap=True)
    for speed in speeds:
        table.add_row(
            f"{speed.context:,}",
            str(speed.slots),
            _number(speed.tokens_per_second.median),
            _spread(speed.window_ms),
            gib(speed.needed.total),
            _number(speed.limit_ms),
            _number(speed.share),
            _number(speed.kernels_ms),
            _number(speed.gap_us),
        )
    return table


def _spread(spread: Spread) -> str:
    return f"{_number(spread.median)} ({_number(spread.lowest)}-{_number(spread.highest)})"


def _number(value: float | None) -> str:
    """Three digits or a few more; nothing for what was not measured."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"
