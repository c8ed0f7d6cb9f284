"""`strata bench kernels --gpu`: every op of a decode window, its time beside its bytes.

Knows the table; what is measured and when it may be shown is in `strata.bench.window_ops`.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.synthetic_model import AskedRoom, make_model, require_room, synthetic_config
from strata.bench.window_ops import OpTime, check_ops, measure_ops
from strata.cli.bench_on_card import check_ranges, copy_rate, use_kept_kernels
from strata.cli.console import progress_bar
from strata.cli.report_file import write_report
from strata.errors import SettingsError
from strata.models.device.synthetic import SyntheticForm


@dataclass(frozen=True)
class CardPlan:
    """What is measured."""

    slots: int
    context: int
    layers: int
    rounds: int


def measure_card(plan: CardPlan, file: Path | None) -> None:
    """Check, measure, print, and write the file if there is one. Raises SettingsError where there is no card."""
    check_ranges(plan.layers, (plan.context,), (plan.slots,), {"rounds": plan.rounds})
    if not torch.cuda.is_available():
        raise SettingsError("strata bench kernels --gpu measures a card, and torch sees none here: give --cpu")
    device, form = torch.device("cuda"), SyntheticForm()
    config = synthetic_config(plan.layers, False)
    require_room(config, form, AskedRoom(plan.slots, plan.context + 2 * (plan.rounds + 1)))
    use_kept_kernels()
    checked = check_ops(device)
    rate = copy_rate()
    with progress_bar() as progress:
        ops = measure_ops(make_model(config, form, device), plan.slots, plan.context, plan.rounds, rate, progress)
    facts = {"card": torch.cuda.get_device_name(), **asdict(plan), "checked_ops": checked, "copy_gb_per_s": rate}
    show_ops(facts, ops, Console(highlight=False))
    write_report(file, json.dumps({**facts, "ops": [asdict(op) for op in ops]}, indent=2))


def show_ops(facts: dict[str, object], ops: list[OpTime], console: Console) -> None:
    """Print the table: what a window spends in each op, and its share of what copying the same bytes would take."""
    console.print(
        Text(
            f"{facts['card']}; copying inside it {facts['copy_gb_per_s']:,.0f} GB/s; windows of {facts['slots']} rows "
            f"at {facts['context']:,} tokens, {facts['layers']} layers; kernels' own times, medians of "
            f"{facts['rounds']} windows; {facts['checked_ops']} ops of a small model agree with their twins"
        ),
        soft_wrap=True,
    )
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")  # fits into 80 columns
    table.add_column("op", no_wrap=True)
    for name in ("calls", "kernels", "us", "MB", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for kind in dict.fromkeys(op.kind for op in ops):
        own = [op for op in ops if op.kind == kind]
        table.add_row(kind, "", "", f"{sum(op.calls * op.microseconds for op in own):.1f}", "", "", style="bold")
        for op in own:
            moved = f"{op.moved_bytes / 1e6:.2f}" if op.moved_bytes else ""
            share = "" if op.share is None else f"{op.share:.2f}"
            table.add_row(f"  {op.step}", f"{op.calls:g}", f"{op.kernels:g}", f"{op.microseconds:.1f}", moved, share)
    console.print(table)
