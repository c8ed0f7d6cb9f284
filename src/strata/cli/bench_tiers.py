"""`strata bench decode --cache`: tokens a second over cache sizes, with experts in three tiers.

Knows flags, the table and where the picture goes; what is measured is in `strata.bench.tiers`.
"""

import json as json_text
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.synthetic_model import AskedRoom, expert_layers_of, make_model, require_room
from strata.bench.tier_formula import SYNC_US, TierRates, limit_ms
from strata.bench.tier_memory import TierMemory
from strata.bench.tier_picture import Line, Point, draw
from strata.bench.tier_rates import ExpertMemory, measure_tier_rates
from strata.bench.tiers import PROFILE_WINDOWS, WHOLE, TierBench, TierPlan, TierSpeed
from strata.cli.bench_on_card import MadeModel, Turns, copy_rate, device_of, made_lines, use_kept_kernels
from strata.cli.console import progress_bar, write_line
from strata.cli.flags import GivenPath, WholeNumber
from strata.cli.report_file import check_report_file, write_report
from strata.engine.tier_loading import threads_beside_a_card
from strata.errors import SettingsError
from strata.hardware import read_cpu
from strata.models.device.description import DeviceModel
from strata.native.pool import Pool
from strata.types import ProgressCallback

DEFAULT_CONTEXT, DEFAULT_SLOTS = (1024,), (1,)
MOST_THREADS = 1024
MOST_GROUPS = 4
LINE_STEPS = 50  # of the formula's line
WHERE_NOTE = (
    "misses, in place, CPU, asked: of a layer of a window, experts and requests; then: from asking the CPU to the wait "
    "for its rows, the layer's other experts in between; wait: until they are there (with --expert-wait stream it is "
    "part of then); swaps: of a window"
)


GROUPS_NOTE = (
    "ratio: to one group; limit: tokens a second of the card alone with all experts in seats, or of misses at the rate "
    "of both sides, whichever is slower; waits: the part of one group's window in which it waits for the CPU"
)


@dataclass(frozen=True)
class Tiers:
    """Experts in three tiers: seats on the card, read in place from main memory, computed by the CPU.

    Parameters
    ----------
    cache
        Percent of each layer's experts that have a seat on the card, such as 0,25,50,75,90,100: one size after another.
        With popular routing the hottest of a short profile have them.
    pcie_share
        With --cache: share of experts without a seat that the card reads in place, 0 to 1; as measured if not given.
    expert_wait
        With --cache: what waits on the card for experts that the CPU computes, spin or stream, as for `strata serve`.
    swaps
        With --cache: experts without a profile at first, and seats that follow the windows.
    threads
        With --cache: threads that compute experts; if not given one for each core that may be used, but for the one
        that launches windows.
    groups
        With --cache: numbers of groups, such as 1,2, into which conversations are shared out; windows of different
        groups run side by side.
    picture
        With --cache: also draw tokens a second over the hit rate into this SVG file.
    """

    cache: str | None = None
    pcie_share: float | None = None
    expert_wait: Literal["spin", "stream"] = "spin"
    swaps: Annotated[bool, Parameter(negative="")] = False
    threads: WholeNumber | None = None
    groups: str | None = None
    picture: GivenPath | None = None

    @property
    def group_counts(self) -> tuple[int, ...]:
        """Numbers of groups. Raises SettingsError for anything else."""
        try:
            found = tuple(int(part) for part in (self.groups or "1").split(","))
        except ValueError:
            found = ()
        if not found or not all(1 <= count <= MOST_GROUPS for count in found):
            raise SettingsError(f"--groups {self.groups} does not work; numbers from 1 to {MOST_GROUPS} do: 1,2")
        return found

    @property
    def sizes(self) -> tuple[int, ...]:
        """The cache sizes in percent. Raises SettingsError for anything else."""
        try:
            found = tuple(int(part) for part in (self.cache or "").split(","))
        except ValueError:
            found = ()
        if not found or not all(0 <= size <= WHOLE for size in found):
            raise SettingsError(f"--cache {self.cache} does not work; whole percents with commas do: 0,25,50,75,90,100")
        return found

    def check(self, turns: Turns) -> None:
        """Raises SettingsError for what does not work, alone or beside these turns."""
        if self.cache is None:
            self._refuse_without_cache()
            return
        _ = self.sizes
        slots = turns.slots or DEFAULT_SLOTS
        unshared = [count for count in self.group_counts if all(each % count for each in slots)]
        if unshared:
            told = ", ".join(map(str, slots))
            raise SettingsError(f"--groups {unshared[0]} does not work with --slots {told}; a multiple of it does")
        if len(turns.context or ()) > 1:
            raise SettingsError("--cache measures one --context at a time: give one")
        if self.pcie_share is not None and not 0 <= self.pcie_share <= 1:
            raise SettingsError(f"--pcie-share {self.pcie_share:g} does not work; a number from 0 to 1 does")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise SettingsError(f"--threads {self.threads} does not work; 1 to {MOST_THREADS} does")
        check_report_file(self.picture, "--picture")

    def _refuse_without_cache(self) -> None:
        """Raises SettingsError if something was said that only experts in tiers understand."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise SettingsError(f"--{field.name.replace('_', '-')} goes with --cache")


def decode_in_tiers(
    made: MadeModel, turns: Turns, tiers: Tiers, json: Path | None, *, with_profile: bool, has_card: bool
) -> None:
    """Make the model, measure, print, and write the files that are wanted. Flags were checked."""
    plan = _plan(made, turns, tiers, with_profile=with_profile, has_card=has_card)
    threads = tiers.threads or threads_beside_a_card(read_cpu().usable_cores)
    copy_gb_per_s = None
    if has_card:
        context = plan.context + 2 * plan.windows
        asked = AskedRoom(max(plan.slots), context, max(plan.caches), kv_kind=made.cell_kind)
        require_room(made.config, made.form, asked)
        use_kept_kernels()
        copy_gb_per_s = copy_rate()
    with progress_bar() as progress, Pool(threads) as pool:
        if progress is None:
            slow = "" if has_card else "; without a card this may take minutes"
            write_line(f"decoding with {len(plan.caches)} cache sizes{slow}")
        begin = time.monotonic()
        model, memory = _make(made, device_of(has_card=has_card), threads, progress)
        taken = time.monotonic() - begin
        rates = None if copy_gb_per_s is None else _rates(memory, pool, copy_gb_per_s)
        speeds = TierBench(model, memory, pool, rates, plan).measure(progress)
    facts = {**made.facts(has_card=has_card), "copy_gb_per_s": copy_gb_per_s, "plan": asdict(plan), "threads": threads}
    facts |= {"rates": None if rates is None else asdict(rates), "making_seconds": taken, "notice": memory.host.notice}
    show(facts, speeds, Console(highlight=False))
    write_report(json, json_text.dumps({**facts, "speeds": [_as_json(speed) for speed in speeds]}, indent=2))
    if tiers.picture is not None:
        write_report(tiers.picture, picture(facts, speeds, rates), "--picture")


def _plan(made: MadeModel, turns: Turns, tiers: Tiers, *, with_profile: bool, has_card: bool) -> TierPlan:
    (context,) = turns.context or DEFAULT_CONTEXT
    return TierPlan(
        tiers.sizes,
        turns.slots or DEFAULT_SLOTS,
        context,
        turns.rounds,
        turns.windows,
        made.is_popular,
        pcie_share=tiers.pcie_share,
        waits_in_stream=tiers.expert_wait == "stream",
        with_swaps=tiers.swaps,
        with_profile=with_profile,
        profile_windows=PROFILE_WINDOWS if has_card else 2,
        seed=made.seed,
        kv_kind=made.cell_kind,
        groups=tiers.group_counts,
    )


def _make(
    made: MadeModel, device: torch.device, threads: int, on_progress: ProgressCallback | None
) -> tuple[DeviceModel, TierMemory]:
    """Dense weights on the device, experts in main memory."""
    memory = TierMemory.take(*expert_layers_of(made.config, made.form), device, threads, on_progress)
    model = make_model(made.config, made.form, device, is_popular=made.is_popular, take_experts=memory.put)
    return model, memory


def _rates(memory: TierMemory, pool: Pool, copy_gb_per_s: float) -> TierRates | None:
    """None where the card cannot read main memory."""
    if not memory.host.is_pinned:
        return None
    return measure_tier_rates(ExpertMemory(memory.layers[0].layout, memory.host.pieces), pool, copy_gb_per_s)


def show(facts: dict[str, Any], speeds: Sequence[TierSpeed], console: Console) -> None:
    """Print the tables."""
    plan, rates = facts["plan"], facts["rates"]
    turns = f"{plan['rounds']} rounds of {plan['windows']} windows, context {plan['context']:,}"
    for line in [*made_lines(facts, turns), *map(Text, _facts_lines(facts, rates))]:
        console.print(line, soft_wrap=True)
    console.print(_speed_table(speeds))
    console.print(_where_table(speeds, rates))
    if any(speed.groups > 1 for speed in speeds):
        console.print(_groups_table(speeds))
        console.print(Text(GROUPS_NOTE), soft_wrap=True)
    overheads = [] if facts["card"] is None else _overheads(speeds)
    for text in [WHERE_NOTE, *overheads, *(line for speed in speeds for line in speed.profile)]:
        console.print(Text(text), soft_wrap=True)


def _facts_lines(facts: dict[str, Any], rates: dict[str, float] | None) -> list[str]:
    plan, notice = facts["plan"], facts["notice"]
    seats = "any at first, then followed" if plan["with_swaps"] else "hottest" if plan["is_popular"] else "any"
    lines = [
        f"routing {facts['routing']}, seats of experts: {seats}; experts in main memory after "
        f"{facts['making_seconds']:.0f} s; {facts['threads']} threads"
    ]
    if rates is not None:
        lines.append(
            "GB/s of experts in main memory: in place P {in_place:.1f} ({0:.2f} of only reading it), on the CPU "
            "C {cpu:.1f} ({1:.2f}), both at once D {both:.1f}, of it {both_in_place:.1f} in place".format(
                rates["in_place"] / rates["in_place_read"], rates["cpu"] / rates["cpu_read"], **rates
            )
        )
        lines.append(
            f"limit = (dense + hits) / VRAM + misses / min(P + C, D) + {SYNC_US} us for each layer that asks the CPU"
        )
    return [*lines, *([] if notice is None else [notice])]


def _speed_table(speeds: Sequence[TierSpeed]) -> Table:
    """Fits into 80 columns."""
    table = _table("cache", "slots", "hits %", "tok/s", "ms a window", "cold ms", "limit ms", "share")
    for speed in speeds:
        spread = (
            f"{_number(speed.window_ms.median)} ({_number(speed.window_ms.lowest)}-{_number(speed.window_ms.highest)})"
        )
        table.add_row(
            _name(speed),
            _slots(speed),
            f"{100 * speed.counts.hit_rate:.1f}",
            _number(speed.tokens_per_second.median),
            spread,
            _number(speed.cold_ms),
            _number(speed.limit_ms),
            _number(speed.share),
        )
    return table


def _where_table(speeds: Sequence[TierSpeed], rates: dict[str, float] | None) -> Table:
    """Of a layer of a window: experts without a seat and where they ran; the CPU's speed; times of its flags."""
    table = _table(
        "cache", "slots", "misses", "in place", "CPU", "asked", "CPU GB/s", "of read", "then us", "wait us", "swaps"
    )
    for speed in speeds:
        counts = speed.counts
        rate = counts.cpu_gb_per_s
        table.add_row(
            _name(speed),
            _slots(speed),
            *(
                _number(each / counts.layers)
                for each in (counts.misses, counts.in_place, counts.on_cpu, counts.requests)
            ),
            _number(rate),
            _number(rate / rates["cpu_read"] if rate is not None and rates is not None else None),
            _number(counts.asked_us),
            _number(counts.waited_us),
            _number(counts.swaps),
        )
    return table


def _groups_table(speeds: Sequence[TierSpeed]) -> Table:
    """Several groups beside one, where both were measured."""
    table = _table("cache", "slots", "hits %", "1 group", "groups", "tok/s", "ratio", "limit", "share", "waits %")
    alone = {(speed.cache, speed.slots): speed for speed in speeds if speed.groups == 1 and speed.is_planned}
    for speed in speeds:
        if speed.groups == 1:
            continue
        one, rate, least_ms = (
            alone.get((speed.cache, speed.slots)),
            speed.tokens_per_second.median,
            speed.side_by_side_ms,
        )
        table.add_row(
            _name(speed),
            str(speed.slots),
            f"{100 * speed.counts.hit_rate:.1f}",
            _number(None if one is None else one.tokens_per_second.median),
            str(speed.groups),
            _number(rate),
            _number(None if one is None else rate / one.tokens_per_second.median),
            _number(None if least_ms is None else 1e3 * speed.slots / least_ms),
            _number(speed.share_side_by_side),
            _number(None if one is None else _waiting_percent(one)),
        )
    return table


def _waiting_percent(speed: TierSpeed) -> float | None:
    """Of a window of one group the part that waits for the CPU; None where nobody clocks it."""
    waited_us = speed.counts.waited_us
    return None if waited_us is None else waited_us * speed.counts.layers / speed.window_ms.median / 10


def _overheads(speeds: Sequence[TierSpeed]) -> list[str]:
    """What the plan costs where nobody is asked: every expert has a seat, with it and without."""
    lines = []
    planned = {
        speed.slots: speed for speed in speeds if (speed.cache, speed.groups, speed.is_planned) == (WHOLE, 1, True)
    }
    for speed in speeds:
        if not speed.is_planned and speed.slots in planned:
            more = 1e3 * (planned[speed.slots].window_ms.median - speed.window_ms.median) / speed.counts.layers
            slots = f"{speed.slots} slot{'s' * (speed.slots > 1)}"
            lines.append(f"{slots}: planning with a seat for every expert takes {more:.1f} us a layer")
    return lines


def picture(facts: dict[str, Any], speeds: Sequence[TierSpeed], rates: TierRates | None) -> str:
    """An SVG of all planned sizes, a line for each number of conversations and a dashed one for the formula."""
    lines = []
    for slots, groups in dict.fromkeys((speed.slots, speed.groups) for speed in speeds):
        found = [speed for speed in speeds if (speed.slots, speed.groups) == (slots, groups) and speed.is_planned]
        limit = () if rates is None or groups > 1 else _limit_line(found[0], rates)
        name = f"{slots} conversation{'s' * (slots > 1)}" + (f" in {groups} groups" if groups > 1 else "")
        name += "; dashed: the formula" if limit else ""
        lines.append(Line(name, tuple(map(_point, found)), limit))
    where = facts["card"] or "no card: these numbers measure nothing real"
    return draw(f"{where}: {facts['layers']} layers, {facts['routing']} routing", lines)


def _point(speed: TierSpeed) -> Point:
    rate = speed.tokens_per_second
    return Point(speed.counts.hit_rate, rate.median, rate.lowest, rate.highest)


def _limit_line(speed: TierSpeed, rates: TierRates) -> tuple[tuple[float, float], ...]:
    """Tokens a second over hit rates; every layer asks the CPU as long as anything is missing."""
    found = []
    for step in range(LINE_STEPS + 1):
        waiting = speed.counts.layers if step < LINE_STEPS else 0
        taken = limit_ms(speed.needed.at(step / LINE_STEPS), rates, waiting)
        found.append((step / LINE_STEPS, 1e3 * speed.slots / taken))
    return tuple(found)


def _as_json(speed: TierSpeed) -> dict[str, Any]:
    counts = speed.counts
    return {**asdict(speed), "share": speed.share, "hit_rate": counts.hit_rate, "misses": counts.misses}


def _name(speed: TierSpeed) -> str:
    return f"{speed.cache} %" if speed.is_planned else "whole"


def _slots(speed: TierSpeed) -> str:
    """Such as 4, or 2+2 in two groups."""
    return "+".join([str(speed.slots // speed.groups)] * speed.groups)


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    """Three digits or a few more; nothing for what was not measured."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"
