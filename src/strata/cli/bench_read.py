"""`strata bench read`: prompts of random tokens read in chunks, over cache sizes, beside what copying allows.

Knows flags and the tables; what is measured and when it may be shown is in `strata.bench.read`.
"""

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.follow_up import HELD_TOKENS, FollowUpBench
from strata.bench.read import ReadBench, ReadPlan, ReadSpeed
from strata.bench.synthetic_model import AskedRoom, expert_layers_of, make_model, require_room
from strata.bench.tier_memory import TierMemory
from strata.cli.bench_on_card import (
    MOST_CONTEXT,
    MadeModel,
    ManyNumbers,
    copy_rate,
    device_of,
    made_lines,
    use_kept_kernels,
)
from strata.cli.console import progress_bar, write_line
from strata.cli.flags import FLAT, GivenPath, WholeNumber
from strata.cli.follow_up_table import check_follow_ups, follow_up_as_json, show_follow_ups
from strata.cli.report_file import check_report_file, write_report
from strata.errors import SettingsError
from strata.hardware import read_cpu
from strata.types import ProgressCallback

GIB = 1 << 30
MOST_ROUNDS = 1000


def read(
    *,
    made: Annotated[MadeModel | None, FLAT] = None,
    cache: str = "0,100",
    chunk: ManyNumbers = None,
    tokens: ManyNumbers = None,
    rounds: WholeNumber = ReadPlan.rounds,
    step: str = "layer",
    profile: Annotated[bool, Parameter(negative="")] = False,
    follow_up: ManyNumbers = None,
    held: WholeNumber = HELD_TOKENS,
    json: GivenPath | None = None,
) -> None:
    """Read prompts with a model of the published shape and random weights, its experts in main memory.

    Parameters
    ----------
    cache
        Percent of each layer's experts that have a seat on the card, such as 0,50,100: one size after another.
    chunk
        Rows that pass the model together; may be given several times. 8,192 if not given.
    tokens
        Tokens of a prompt; may be given several times. 8,192 and 32,768 if not given.
    rounds
        How often each prompt is read; once more before that to warm up.
    step
        Between which steps others could run: layer, tile, or layer,tile for one after the other.
    profile
        Also show how long every step of every kind of layer takes.
    follow_up
        Instead of whole prompts so many fresh tokens behind a turn that a slot holds; may be given several times.
    held
        Tokens of that turn.
    json
        Also write everything to this file.
    """
    has_card = torch.cuda.is_available()
    made = made or MadeModel()
    made.check()
    plan = ReadPlan(
        _caches(cache),
        chunk or ReadPlan.chunks,
        (held + max(follow_up),) if follow_up else tokens or ReadPlan.tokens,
        rounds,
        with_profile=profile,
        seed=made.seed,
        kv_kind=made.cell_kind,
        steps=_steps(step),
    )
    check_follow_ups(follow_up or (), held)
    check_plan(plan)
    check_report_file(json)
    made.require_card(has_card=has_card)
    copied = _rate_of_card(made, plan) if has_card else None
    facts = {**made.facts(has_card=has_card), "copy_gb_per_s": copied, "plan": asdict(plan)}
    with progress_bar() as progress:
        if progress is None:
            write_line(f"reading with {len(plan.caches)} cache sizes{'' if has_card else '; slow without a card'}")
        bench = _bench(made, plan, device_of(has_card=has_card), progress)
        turns = FollowUpBench(bench, follow_up, held).measure(progress) if follow_up else []
        speeds = [] if follow_up else bench.measure(progress)
    facts["notice"] = bench.memory.host.notice
    if follow_up:
        show_follow_ups(facts, turns, Console(highlight=False))
    else:
        show(facts, speeds, Console(highlight=False))
    results = {"speeds": [_as_json(each) for each in speeds], "follow_ups": [follow_up_as_json(each) for each in turns]}
    write_report(json, json_text.dumps({**facts, **results}, indent=2))


def _rate_of_card(made: MadeModel, plan: ReadPlan) -> float:
    """10^9 bytes a second of copies inside it. Raises ModelError if it has no room for what is asked for."""
    asked = AskedRoom(1, max(plan.tokens), max(plan.caches), max(plan.chunks), made.cell_kind)
    require_room(made.config, made.form, asked)
    use_kept_kernels()
    return copy_rate()


def _bench(made: MadeModel, plan: ReadPlan, device: torch.device, progress: ProgressCallback | None) -> ReadBench:
    layers, experts = expert_layers_of(made.config, made.form)
    memory = TierMemory.take(layers, experts, device, read_cpu().usable_cores, progress)
    model = make_model(made.config, made.form, device, is_popular=made.is_popular, take_experts=memory.put)
    return ReadBench(model, memory, plan)


def check_plan(plan: ReadPlan) -> None:
    """Raises SettingsError for the first number that does not work."""
    for rows in plan.chunks:
        if rows < 64 or rows % 64 or rows > MOST_CONTEXT:
            raise SettingsError(f"--chunk {rows} does not work; a multiple of 64 up to {MOST_CONTEXT:,} does")
    for count in plan.tokens:
        if not 1 <= count <= MOST_CONTEXT:
            raise SettingsError(f"--tokens {count} does not work; a whole number from 1 to {MOST_CONTEXT:,} does")
    if not 1 <= plan.rounds <= MOST_ROUNDS:
        raise SettingsError(f"--rounds {plan.rounds} does not work; a whole number from 1 to {MOST_ROUNDS} does")


def _caches(given: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in given.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= size <= 100 for size in found):
        raise SettingsError(f"--cache {given} does not work; whole percents with commas do: 0,50,100")
    return found


def _steps(given: str) -> tuple[str, ...]:
    found = tuple(given.split(","))
    if not set(found) <= {"layer", "tile"}:
        raise SettingsError(f"--step {given} does not work; layer, tile and layer,tile do")
    return found


def show(facts: Mapping[str, Any], speeds: Sequence[ReadSpeed], console: Console) -> None:
    """Print the tables."""
    lines = made_lines(facts, f"{facts['plan']['rounds']} rounds")
    lines += [] if facts["notice"] is None else [Text(facts["notice"])]
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print(_speed_table(speeds))
    console.print(_memory_table(speeds))
    console.print(Text("between: two steps of which others could run, 99 of 100 of them and the longest"))
    console.print(Text("share: of the read that sending alone takes"))
    console.print(
        Text("beside: the most of the card beside weights, seats and a slot, which has room for the longest prompt")
    )
    for speed in speeds:
        for text in _profile_lines(speed):
            console.print(Text(text), soft_wrap=True)


def _speed_table(speeds: Sequence[ReadSpeed]) -> Table:
    """Fits into 80 columns."""
    table = _table("cache", "chunk", "tokens", "step", "tok/s", "seconds", "ms/layer", "between ms", "share")
    for speed in speeds:
        spread = speed.seconds
        table.add_row(
            *_name(speed),
            speed.step,
            f"{speed.tokens_per_second:,.0f}",
            f"{spread.median:.3f} ({spread.lowest:.3f}-{spread.highest:.3f})",
            f"{speed.layer_ms:.2f}",
            f"{speed.slow_ms:.1f} {speed.longest_ms:5.1f}",
            "" if speed.copy_share is None else f"{speed.copy_share:.2f}",
        )
    return table


def _memory_table(speeds: Sequence[ReadSpeed]) -> Table:
    """What was sent in one read, how long that alone takes, and what memory there is."""
    table = _table("cache", "chunk", "tokens", "sent GiB", "alone ms", "chunks GiB", "beside GiB", "card GiB")
    for speed in speeds:
        table.add_row(
            *_name(speed),
            f"{speed.sent_bytes / GIB:.2f}",
            "" if speed.copy_ms is None else f"{speed.copy_ms:.0f}",
            f"{speed.chunk_bytes / GIB:.2f}",
            "" if speed.beside_bytes is None else f"{speed.beside_bytes / GIB:.3f}",
            "" if speed.peak_bytes is None else f"{speed.peak_bytes / GIB:.1f}",
        )
    return table


def _name(speed: ReadSpeed) -> tuple[str, str, str]:
    return f"{speed.cache} %", f"{speed.chunk:,}", f"{speed.tokens:,}"


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _profile_lines(speed: ReadSpeed) -> list[str]:
    """A table of parts: each kind of layer with its sum and its steps."""
    lines = []
    for kind in dict.fromkeys(part.kind for part in speed.parts):
        own = [part for part in speed.parts if part.kind == kind]
        whole = sum(part.ms for part in own)
        where = f"cache {speed.cache} %, chunk {speed.chunk:,}, {kind}, {own[0].layers} of them"
        lines.append(f"{where}: {whole:.2f} ms a layer")
        lines += [f"  {part.step:34} {part.ms:8.3f} ms  {100 * part.ms / whole:5.1f} %" for part in own]
    return lines


def _as_json(speed: ReadSpeed) -> dict[str, Any]:
    return {**asdict(speed), "tokens_per_second": speed.tokens_per_second, "copy_share": speed.copy_share}
