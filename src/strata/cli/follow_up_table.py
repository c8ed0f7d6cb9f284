"""What `strata bench read --follow-up` prints. Knows a table; knows no measurement."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.follow_up import READING_SECONDS, RESIDENT_SECONDS, SENDING_PART, FollowUp
from strata.cli.bench_on_card import MOST_CONTEXT, made_lines
from strata.errors import SettingsError

GIB = 1 << 30


def check_follow_ups(fresh: Sequence[int], held: int) -> None:
    """Raises SettingsError for the first number that does not work."""
    if not 1 <= held <= MOST_CONTEXT:
        raise SettingsError(f"--held {held} does not work; a whole number from 1 to {MOST_CONTEXT:,} does")
    for count in fresh:
        if not 1 <= count <= MOST_CONTEXT - held:
            raise SettingsError(
                f"--follow-up {count} does not work; behind {held:,} tokens a whole number from 1 to "
                f"{MOST_CONTEXT - held:,} does"
            )


def show_follow_ups(facts: Mapping[str, Any], found: Sequence[FollowUp], console: Console) -> None:
    """Print the table."""
    for line in made_lines(facts, f"{facts['plan']['rounds']} turns behind {found[0].held:,} tokens"):
        console.print(line, soft_wrap=True)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")
    for name in ("cache", "fresh", "first token ms", "sent GiB", "alone ms", "wanted ms", "of wanted"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        spread = each.seconds
        table.add_row(
            f"{each.cache} %",
            f"{each.fresh:,}",
            f"{1e3 * spread.median:.1f} ({1e3 * spread.lowest:.1f}-{1e3 * spread.highest:.1f})",
            f"{each.sent_bytes / GIB:.2f}",
            *(_or_empty(value, 1e3, 1) for value in (each.link_seconds, each.wanted_seconds)),
            _or_empty(each.share, 1, 2),
        )
    console.print(table)
    console.print(
        Text(
            f"first token: read, logits of the last row, drawn; wanted: at most {SENDING_PART:g} times alone and "
            f"{1e3 * READING_SECONDS:.0f} ms, {1e3 * RESIDENT_SECONDS:.0f} ms where nothing is sent"
        ),
        soft_wrap=True,
    )


def follow_up_as_json(each: FollowUp) -> dict[str, Any]:
    """With what follows from it."""
    return {**asdict(each), "wanted_seconds": each.wanted_seconds, "share": each.share}


def _or_empty(value: float | None, factor: float, digits: int) -> str:
    return "" if value is None else f"{factor * value:.{digits}f}"
