"""`strata bench kernels`: how near the kernels come to what this machine's memory gives, the C++ library's or a card's.

Knows flags and the tables; what is measured and when it may be shown is in `strata.bench.kernels` and `window_ops`.
"""

from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.kernels import KernelPlan, KernelReport, measure_kernels
from strata.bench.spread import Spread
from strata.cli.bench_card import CardPlan, measure_card
from strata.cli.flags import GivenPath
from strata.cli.report_file import check_report_file, write_report
from strata.errors import SettingsError
from strata.hardware import read_cpu


def kernels(
    *,
    cpu: Annotated[bool, Parameter(negative="")] = False,
    gpu: Annotated[bool, Parameter(negative="")] = False,
    threads: tuple[int, ...] | None = None,
    rows: int = 1,
    experts: int = 10,
    hidden: int = 2560,
    width: int = 640,
    mib: int = 1024,
    rounds: int = 7,
    slots: int = 1,
    context: int = 1024,
    layers: int = 12,
    json: GivenPath | None = None,
) -> None:
    """Measure kernels against plain reading and copying: the C++ library's experts, or every op of a card's windows.

    Parameters
    ----------
    cpu
        On the processor: experts of every storage code, in turns with reading the same memory and with multiplying.
    gpu
        On the card: every op of a decode window at the published shape, each held against its twin before.
    threads
        Numbers of threads; doubled from 1 up to the cores that may be used if not given.
    rows
        Activation rows of every expert.
    experts
        Experts of one call: ten are what a token asks of a layer of the published model.
    hidden
        Columns of gate and up.
    width
        Rows of gate and up.
    mib
        MiB of experts; far more than the caches hold.
    rounds
        How often everything has its turn.
    slots
        With --gpu: conversations of a window.
    context
        With --gpu: tokens of each.
    layers
        With --gpu: layers of the model; a few are enough, together they must not fit in a cache.
    json
        Also write everything to this file.
    """
    if cpu == gpu:
        raise SettingsError("strata bench kernels measures one of the two: give --cpu or --gpu")
    check_report_file(json)
    if gpu:
        measure_card(CardPlan(slots, context, layers, rounds), json)
        return
    sizes = (hidden, width)
    if min(rows, experts, mib, rounds, *sizes, *(threads or (1,))) < 1 or any(size % 64 for size in sizes):
        raise SettingsError("numbers must be at least 1, --hidden and --width multiples of 64")
    counts = threads or doubled_up_to(read_cpu().usable_cores)
    report = measure_kernels(KernelPlan(tuple(counts), hidden, width, rows, experts, mib, rounds))
    show(report, Console(highlight=False))
    write_report(json, report.as_json())


def doubled_up_to(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... and `most` itself."""
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return tuple(counts) if counts[-1] == most else (*counts, most)


def show(report: KernelReport, console: Console) -> None:
    """Print the table."""
    plan = report.plan
    console.print(
        Text(
            f"{report.path}; {plan.experts} experts of {plan.hidden} x {plan.width} a call, {plan.rows} rows each; "
            f"median (lowest to highest) of {plan.rounds} rounds in turns; results equal the scalar path's bit for bit"
        ),
        soft_wrap=True,
    )
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="cyan")  # fits into 80 columns
    table.add_column("code", no_wrap=True)
    for name in ("threads", "read GB/s", "experts GB/s", "ratio", "GMAC/s", "of peak"):
        table.add_column(name, justify="right", no_wrap=True)
    for speed in report.speeds:
        cells = (_cell(speed.read, 1), _cell(speed.experts, 1), _cell(speed.ratio, 2))
        many = (f"{speed.multiplied.median:,.0f}", f"{speed.multiply_ratio.median:.2f}")
        table.add_row(speed.code, str(speed.threads), *cells, *many)
    console.print(table)


def _cell(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.lowest:.{digits}f}-{spread.highest:.{digits}f})"
