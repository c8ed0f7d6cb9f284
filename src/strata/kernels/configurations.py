"""How each kernel is launched: warps, unrolling, rows at once. Chosen by measurement, never at run time.

Knows no kernel. Every entry gives the same bits; a test and the GPU command's gate hold them against each other.
"""

from dataclasses import dataclass

from strata.quant.layout import MatrixLayout

MOST_ROWS_AT_ONCE = 8


@dataclass(frozen=True)
class LaunchShape:
    """Constants of one launch."""

    rows: int = 1  # activation rows that share one reading of the weights
    warps: int = 1  # one warp a tile of 16 outputs
    unroll: int = 1  # loop steps whose loads go out together
    stages: int = 1


def rows_at_once(rows: int) -> int:
    """The least power of two that holds `rows`, at most 8."""
    return min(1 << max(rows - 1, 0).bit_length(), MOST_ROWS_AT_ONCE)


def packed_launch(layout: MatrixLayout, rows: int) -> LaunchShape:
    """The launch of a dense matrix times `rows` rows."""
    at_once = rows_at_once(rows)
    return LaunchShape(rows=at_once, unroll=(4 if layout.code.is_float else 2) if at_once <= 2 else 1)


def expert_launch(layout: MatrixLayout, most_rows: int) -> LaunchShape:
    """The launch of gate and up or down of experts of which none has more than `most_rows` rows."""
    return LaunchShape(rows=rows_at_once(most_rows), unroll=2 if most_rows <= 2 else 1)
