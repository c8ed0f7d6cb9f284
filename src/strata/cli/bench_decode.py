"""`strata bench decode`: one token for each of some conversations, window after window, beside what memory allows.

Knows flags and the table; what is measured and when it may be shown is in `strata.bench.decode`.
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

from strata.bench.decode import DecodePlan, DecodeSpeed, measure_decode, speed_as_json
from strata.bench.spread import Spread
from strata.bench.synthetic_model import make_model, require_room, synthetic_config
from strata.cli.console import progress_bar, write_line
from strata.cli.flags import GivenPath, WholeNumber
from strata.cli.model_report import gib
from strata.cli.report_file import check_report_file, write_report
from strata.errors import SettingsError
from strata.kernels.compiled import use_cache
from strata.models.config_fields import MOST_LAYERS
from strata.models.device.synthetic import SyntheticForm
from strata.settings import kernel_cache_folder, resolve

MOST_CONTEXT = 262_144
MOST_SLOTS = 32
MOST_TURNS = 1 << 14
COPIED_BYTES = 2 << 30


def decode(
    *,
    layers: WholeNumber = 12,
    experts_bits: float = SyntheticForm.experts_bits,
    dense_bits: float = SyntheticForm.dense_bits,
    context: Annotated[tuple[WholeNumber, ...], Parameter(negative="")] = DecodePlan.contexts,
    slots: Annotated[tuple[WholeNumber, ...], Parameter(negative="")] = DecodePlan.slots,
    rounds: WholeNumber = DecodePlan.rounds,
    windows: WholeNumber = DecodePlan.windows,
    profile: Annotated[bool, Parameter(negative="")] = False,
    tiny: Annotated[bool, Parameter(negative="")] = False,
    seed: WholeNumber = 0,
    json: GivenPath | None = None,
) -> None:
    """Decode with a model of the published shape and random weights, made in the card's memory.

    Parameters
    ----------
    layers
        Layers of the model; the release has 48.
    experts_bits
        Bits of a routed weight: 2.25, 4.5, 8.5 or 16.
    dense_bits
        Bits of every other matrix's weights.
    context
        Tokens that each conversation has, filled with random state; may be given several times.
    slots
        Conversations that share a window; may be given several times.
    rounds
        How often each pair of context and slots has its turn.
    windows
        Windows of a turn.
    profile
        Also show how long every step of every kind of layer takes, outside graphs.
    tiny
        A model of a few megabytes instead; also runs without a card, which takes minutes and measures nothing real.
    seed
        Of weights and state.
    json
        Also write everything to this file.
    """
    check_ranges(layers, context, slots, {"rounds": rounds, "windows": windows})
    has_card = torch.cuda.is_available()
    if not has_card and not tiny:
        raise SettingsError("strata bench decode measures a card, and torch sees none here: --tiny tries it without")
    check_report_file(json)
    device, form = torch.device("cuda" if has_card else "cpu"), SyntheticForm(experts_bits, dense_bits, seed)
    config = synthetic_config(layers, tiny)
    if has_card:
        require_room(config, form, max(slots), max(context) + 2 * windows)
        use_kept_kernels()
    model = make_model(config, form, device)
    plan = DecodePlan(context, slots, rounds, windows, profile, seed)
    copy_gb_per_s = copy_rate() if has_card else None
    with progress_bar() as progress:
        if progress is None:
            write_line(_beginning(plan, has_card=has_card))
        speeds = measure_decode(model, plan, copy_gb_per_s, progress)
    facts = _facts(device, form, copy_gb_per_s) | {"layers": layers, "tiny": tiny, "plan": asdict(plan)}
    show(facts, speeds, Console(highlight=False))
    everything = {**facts, "speeds": [speed_as_json(speed) for speed in speeds]}
    write_report(json, json_text.dumps(everything, indent=2))


def check_ranges(layers: int, contexts: Sequence[int], slots: Sequence[int], counts: Mapping[str, int]) -> None:
    """Raises SettingsError for the first number that no model or card takes."""
    limits = [("layers", layers, MOST_LAYERS), *(("context", each, MOST_CONTEXT) for each in contexts)]
    limits += [("slots", each, MOST_SLOTS) for each in slots]
    limits += [(name, each, MOST_TURNS) for name, each in counts.items()]
    for name, value, most in limits:
        if not 1 <= value <= most:
            raise SettingsError(f"--{name} {value} does not work; a whole number from 1 to {most:,} does")


def use_kept_kernels() -> None:
    """Compiled kernels come from the folder of every other command, and go there."""
    use_cache(kernel_cache_folder(resolve({}).engine))


def copy_rate() -> float:
    """10^9 bytes a second that copying inside the card reads and writes."""
    from strata.bench.device_timing import device_rates_gb_per_s  # needs Triton

    size = min(COPIED_BYTES, torch.cuda.mem_get_info()[0] // 8) >> 20 << 20
    copied, _ = device_rates_gb_per_s(size)
    torch.cuda.empty_cache()
    return copied


def _beginning(plan: DecodePlan, *, has_card: bool) -> str:
    """What runs now, where no bar shows it."""
    windows = len(plan.contexts) * len(plan.slots) * (plan.rounds + 1) * plan.windows
    told = f"decoding {windows:,} windows of up to {max(plan.slots)} conversations"
    return told if has_card else f"{told}; without a card this may take minutes"


def _facts(device: torch.device, form: SyntheticForm, copy_gb_per_s: float | None) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device.type == "cuda" else None
    return {"card": name, "torch": torch.__version__, **asdict(form), "copy_gb_per_s": copy_gb_per_s}


def show(facts: dict[str, Any], speeds: list[DecodeSpeed], console: Console) -> None:
    """Print the table."""
    plan = facts["plan"]
    shape = "tiny" if facts["tiny"] else "published"
    console.print(
        Text(
            f"{facts['card'] or 'no card'}; {facts['layers']} layers of the {shape} shape, random weights, experts "
            f"{facts['experts_bits']:g} bits, others {facts['dense_bits']:g}; median (lowest to highest) of "
            f"{plan['rounds']} rounds of {plan['windows']} windows in turns"
        ),
        soft_wrap=True,
    )
    if facts["card"] is None:
        where = "torch's definitions of the kernels ran on the processor: these numbers measure nothing real"
        console.print(Text(where, style="bold red"), soft_wrap=True)
    else:
        console.print(Text(f"copying inside the card: {facts['copy_gb_per_s']:,.0f} GB/s"), soft_wrap=True)
    console.print(_table(speeds))
    for line in notes(speeds):
        console.print(Text(line), soft_wrap=True)
    for speed in speeds:
        for line in speed.profile:
            console.print(Text(line), soft_wrap=True)


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
