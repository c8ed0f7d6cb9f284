"""`strata bench kernels`: how near the C++ library's experts come to what this machine's memory gives.

Knows flags and the table; what is measured and when it may be shown is in `strata.bench.kernels`.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.kernels import KernelPlan, KernelReport, Spread, measure_kernels
from strata.errors import SettingsError
from strata.hardware import read_cpu


def kernels(
    *,
    cpu: Annotated[bool, Parameter(negative="")] = False,
    threads: tuple[int, ...] | None = None,
    rows: int = 1,
    hidden: int = 2560,
    width: int = 640,
    mib: int = 1024,
    rounds: int = 7,
    json: Path | None = None,
) -> None:
    """Measure experts of every storage code against plain reading of the same memory, in turns.

    Parameters
    ----------
    cpu
        On the processor: what there is today.
    threads
        Numbers of threads; doubled from 1 up to the cores that may be used if not given.
    rows
        Activation rows of every expert.
    hidden
        Columns of gate and up.
    width
        Rows of gate and up.
    mib
        MiB of experts; far more than the caches hold.
    rounds
        How often reading and experts have their turn.
    json
        Also write everything to this file.
    """
    if not cpu:
        raise SettingsError("strata bench kernels measures on the processor today: give --cpu")
    if min(rows, mib, rounds, *(threads or (1,))) < 1 or hidden < 64 or width < 64 or hidden % 64 or width % 64:
        raise SettingsError("numbers must be at least 1, --hidden and --width multiples of 64")
    counts = threads or doubled_up_to(read_cpu().usable_cores)
    report = measure_kernels(KernelPlan(tuple(counts), hidden, width, rows, mib, rounds))
    show(report, Console(highlight=False))
    if json is not None:
        json.write_text(report.as_json() + "\n", "utf-8")


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
            f"{report.path}; experts of {plan.hidden} x {plan.width}, {plan.rows} rows each; median (lowest to "
            f"highest) of {plan.rounds} rounds in turns; results equal the scalar path's bit for bit"
        ),
        soft_wrap=True,
    )
    table = Table("code", box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for name in ("threads", "mul/byte", "read GB/s", "experts GB/s", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for speed in report.speeds:
        cells = (_cell(speed.read, 1), _cell(speed.experts, 1), _cell(speed.ratio, 2))
        table.add_row(speed.code, str(speed.threads), f"{speed.operations_per_byte:.1f}", *cells)
    console.print(table)


def _cell(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.lowest:.{digits}f}-{spread.highest:.{digits}f})"
