"""`strata bench decode --kv-resident`: tokens a second with keys and values in main memory, beside all on the card.

Knows flags and the table; what is measured is in `strata.bench.paged`.
"""

import json as json_text
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.paged import PagedPlan, PagedSpeed, measure_paged
from strata.bench.spread import Spread
from strata.bench.synthetic_model import AskedRoom, make_model, require_room
from strata.cli.bench_on_card import MadeModel, Turns, copy_rate, device_of, made_lines, use_kept_kernels
from strata.cli.console import progress_bar, write_line
from strata.cli.report_file import write_report
from strata.errors import SettingsError
from strata.models.device.cell_pools import least_resident
from strata.weights.presets import text_part

DEFAULT_CONTEXT, DEFAULT_SLOTS = 131_072, (1,)
MOST_SPREAD = 10.0
LINK_BYTES = 256 << 20
NOTE = (
    "hits: of the blocks that rows ask for; kept: of the blocks that a row chooses, its conversation's next chooses "
    "again; MB: brought by a window; link: what that takes at the speed of reading main memory in place; speed: of "
    "all keys and values on the card, in turns, which gave the same tokens"
)


@dataclass(frozen=True)
class Pages:
    """Keys and values in main memory, a pool of blocks on the card.

    Parameters
    ----------
    kv_resident
        Cells of a conversation whose keys and values the card keeps while main memory has all, such as 4096,32768: one
        number after another, each in turns with all of them on the card. 131,072 tokens and one slot if not given.
    kv_spread
        With --kv-resident: how far the sizes of the made-up keys of blocks spread, of their logarithm. With 3 about two
        thirds of the chosen blocks stay from one window to the next, with 1 a third, with 0 hardly any.
    """

    kv_resident: str | None = None
    kv_spread: float = PagedPlan.spread

    @property
    def residents(self) -> tuple[int, ...]:
        """Cells that the card keeps. Raises SettingsError for anything but whole numbers."""
        try:
            return tuple(int(part) for part in (self.kv_resident or "").split(","))
        except ValueError:
            raise SettingsError(
                f"--kv-resident {self.kv_resident} does not work; whole numbers with commas do: 4096,32768"
            ) from None

    def check(self, made: MadeModel, turns: Turns, *, has_tiers: bool) -> None:
        """Raises SettingsError for what does not work, alone or beside the other flags."""
        if self.kv_resident is None:
            if self.kv_spread != PagedPlan.spread:
                raise SettingsError("--kv-spread goes with --kv-resident")
            return
        if has_tiers:
            raise SettingsError("--kv-resident is measured with all experts on the card: leave out --cache")
        if len(turns.context or ()) > 1:
            raise SettingsError("--kv-resident measures one --context at a time: give one")
        if not 0 <= self.kv_spread <= MOST_SPREAD:
            raise SettingsError(
                f"--kv-spread {self.kv_spread:g} does not work; a number from 0 to {MOST_SPREAD:g} does"
            )
        text = text_part(made.config)
        ratio = text["indexer_compress_ratio"]
        least = least_resident(text["indexer_budget"] // ratio, ratio)
        context = (turns.context or (DEFAULT_CONTEXT,))[0]
        for resident in self.residents:
            if not least <= resident <= context:
                raise SettingsError(
                    f"--kv-resident {resident} does not work; from the {least:,} cells that a row may read to the "
                    f"{context:,} of --context does"
                )


def decode_paged(
    made: MadeModel, turns: Turns, pages: Pages, json: Path | None, *, with_profile: bool, has_card: bool
) -> None:
    """Make the model, measure, print, and write the file that is wanted. Flags were checked."""
    context, slots = (turns.context or (DEFAULT_CONTEXT,))[0], turns.slots or DEFAULT_SLOTS
    plan = PagedPlan(
        context,
        slots,
        pages.residents,
        pages.kv_spread,
        turns.rounds,
        turns.windows,
        with_profile,
        made.seed,
        made.cell_kind,
    )
    copy_gb_per_s = link_gb_per_s = None
    if has_card:
        both = 2 * max(slots)  # two stages stand side by side; one of them takes less
        require_room(made.config, made.form, AskedRoom(both, context + 2 * turns.windows, kv_kind=made.cell_kind))
        use_kept_kernels()
        copy_gb_per_s, link_gb_per_s = copy_rate(), _link_rate()
    model = make_model(made.config, made.form, device_of(has_card=has_card), is_popular=made.is_popular)
    with progress_bar() as progress:
        if progress is None:
            slow = "" if has_card else "; without a card this may take minutes"
            write_line(f"decoding with {len(plan.residents)} sizes of pools{slow}")
        speeds = measure_paged(model, plan, progress)
    rates = {"copy_gb_per_s": copy_gb_per_s, "link_gb_per_s": link_gb_per_s}
    facts = {**made.facts(has_card=has_card), **rates, "plan": asdict(plan)}
    show(facts, speeds, Console(highlight=False))
    write_report(json, json_text.dumps({**facts, "speeds": [asdict(speed) for speed in speeds]}, indent=2))


def _link_rate() -> float:
    """10^9 bytes a second of main memory that a kernel reads in place."""
    from strata.bench.device_timing import host_rates_gb_per_s  # needs Triton

    return host_rates_gb_per_s(torch.zeros(LINK_BYTES, dtype=torch.uint8, pin_memory=True))[1]


def show(facts: dict[str, Any], speeds: Sequence[PagedSpeed], console: Console) -> None:
    """Print the table."""
    plan = facts["plan"]
    for text in made_lines(facts, f"{plan['rounds']} rounds of {plan['windows']} windows in turns"):
        console.print(text, soft_wrap=True)
    link = facts["link_gb_per_s"]
    if link is not None:
        console.print(Text(f"reading main memory in place: {link:.1f} GB/s"), soft_wrap=True)
    console.print(Text(f"{plan['context']:,} tokens; sizes of keys spread by {plan['spread']:g}"), soft_wrap=True)
    console.print(_table(speeds, link))
    console.print(Text(NOTE), soft_wrap=True)
    for speed in speeds:
        for line in speed.profile:
            console.print(Text(line), soft_wrap=True)


def _table(speeds: Sequence[PagedSpeed], link_gb_per_s: float | None) -> Table:
    """Fits into 80 columns; see NOTE."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")
    for name in ("slots", "cells", "hits", "kept", "MB", "link ms", "ms a window", "all on card", "speed"):
        table.add_column(name, justify="right", no_wrap=True)
    for speed in speeds:
        link = "" if link_gb_per_s is None else f"{speed.brought_bytes / link_gb_per_s / 1e6:.3f}"
        table.add_row(
            str(speed.slots),
            f"{speed.resident:,}",
            f"{100 * speed.hits:.1f} %",
            f"{100 * speed.kept:.0f} %",
            f"{speed.brought_bytes / 1e6:.2f}",
            link,
            _spread(speed.paged_ms),
            f"{speed.whole_ms.median:.3f}",
            f"{speed.speed:.3f}",
        )
    return table


def _spread(spread: Spread) -> str:
    return f"{spread.median:.3f} ({spread.lowest:.2f}-{spread.highest:.2f})"
