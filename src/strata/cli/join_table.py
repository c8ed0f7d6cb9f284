"""The table of scenarios with joining prompts: every mode under each measure, its ratio to `whole`, what is wanted.

Knows how it looks; knows no measurement.
"""

from collections.abc import Mapping, Sequence

from rich.table import Table

from strata.bench.join_measures import Measure, target_of
from strata.bench.join_modes import JoinMode
from strata.bench.spread import Spread
from strata.scheduler.read_modes import ReadMode

Values = Mapping[JoinMode, Mapping[str, Spread]]  # by mode and by a measure's title
Published = Mapping[JoinMode, Mapping[str, float]]


def join_table(
    measures: Sequence[Measure], values: Values, first_rows: int, published: Published | None = None
) -> Table:
    """Seconds, tokens and tokens a second. first_rows: of the first joiner's prompt. Fits into 80 columns."""
    names = ("lowest-highest",) if published is None else ("published", "error")
    table = _table("", "median", *names, "of whole", "wanted")
    whole = next((found for mode, found in values.items() if mode.mode is ReadMode.WHOLE), None)
    beside: tuple[str, ...]
    for measure in measures:
        table.add_row(measure.title)
        for mode, found in values.items():
            spread = found[measure.title]
            base = None if whole is None or mode.mode is ReadMode.WHOLE else whole[measure.title].median
            beside = (_spread(spread),)
            if published is not None:
                beside = _compared(spread.median, published.get(mode, {}).get(measure.title))
            table.add_row(
                f"  {mode.name}",
                number(spread.median),
                *beside,
                f"{spread.median / base:.2f}x" if base else "",
                "" if base is None else _wanted(measure, mode, first_rows, spread.median, base),
            )
    return table


def number(value: float) -> str:
    """Three digits, more of large ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _wanted(measure: Measure, mode: JoinMode, first_rows: int, value: float, base: float) -> str:
    target = target_of(measure, mode, first_rows)
    if target is None:
        return ""
    sign, word = ">=" if target.is_least else "<=", "yes" if target.is_met(value, base) else "NO"
    return f"{sign} {number(target.limit(base))} {word}"


def _spread(spread: Spread) -> str:
    return "" if spread.lowest == spread.highest else f"{number(spread.lowest)}-{number(spread.highest)}"


def _compared(value: float, published: float | None) -> tuple[str, str]:
    return ("", "") if published is None else (number(published), f"{value / published - 1:+.1%}")


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")
    for name in names:
        table.add_column(name, justify="left" if name in ("", "wanted") else "right", no_wrap=True)
    return table
