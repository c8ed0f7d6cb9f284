"""`python -m tests.oracle.table`: the table of logit differences between Strata and transformers, per family.

Knows the limits that must hold; exits with 1 if one is exceeded.
"""

import argparse
import sys

import torch
import transformers

from tests.oracle.compare import CLEAR_MARGIN, Comparison, compare
from tests.oracle.configs import FAMILIES, random_case

LIMIT_FLOAT64 = 1e-8
LIMIT_FLOAT32 = 2e-4
HEADING = [
    "family",
    "configs",
    "rows",
    "logits (sd)",
    "float64",
    "float32",
    "clear rows",
    "float32 all rows",
    "oracle f32",
]


def family_row(family: str, results: list[Comparison]) -> tuple[list[str], bool]:
    """The family's table cells and whether it keeps both limits."""
    rows = sum(result.num_rows for result in results)
    clear = sum(result.num_clear_rows for result in results)
    max64 = max(result.max_diff_float64 for result in results)
    max32 = max(result.max_diff_float32 for result in results)
    any32 = max(result.max_diff_float32_any for result in results)
    oracle32 = max(result.max_diff_float32_oracle for result in results)
    scales = [result.logit_scale for result in results]
    cells = [
        family,
        str(len(results)),
        str(rows),
        f"{min(scales):.1f}-{max(scales):.1f}",
        f"{max64:.1e}",
        f"{max32:.1e}",
        f"{100.0 * clear / rows:.1f} %",
        f"{any32:.1e}",
        f"{oracle32:.1e}",
    ]
    return cells, max64 <= LIMIT_FLOAT64 and max32 <= LIMIT_FLOAT32


def print_table(rows: list[list[str]]) -> None:
    """Rows of cells, the first row as the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if index == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def main() -> int:
    """Compare `--configs` random configs of each family; 0 if every limit holds."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--configs", type=int, default=16, help="random configs per family")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only this family (may be repeated)")
    parser.add_argument("--each", action="store_true", help="also print one line per config")
    arguments = parser.parse_args()

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # the matrices are tiny
    table, all_kept = [HEADING], True
    for family in arguments.family or FAMILIES:
        results = []
        for seed in range(arguments.configs):
            case = random_case(family, seed)
            results.append(compare(case))
            if arguments.each:
                print(case.name, results[-1])
        cells, kept = family_row(family, results)
        table.append(cells)
        all_kept = all_kept and kept
    print_table(table)
    print(f"\nmax abs difference of all logits to transformers {transformers.__version__}, eager, float64; ", end="")
    print(f"torch {torch.__version__}")
    print(
        f"clear rows: every top-k choice of the row and of the rows before it is decided by more than {CLEAR_MARGIN:g};"
    )
    print("float32: over clear rows; oracle f32: transformers in float32 against itself in float64, over clear rows")
    print(f"limits: {LIMIT_FLOAT64:g} in float64, {LIMIT_FLOAT32:g} in float32: {'kept' if all_kept else 'EXCEEDED'}")
    return 0 if all_kept else 1


if __name__ == "__main__":
    sys.exit(main())
