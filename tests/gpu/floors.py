"""The least time that a product may take on a GPU, from what must be read and what must be computed. Pure.

The order of additions is fixed, so the float operations behind each exact sum are part of the work: per sum and row one
product of scales, one subtraction that makes the sum a float and one fma (two more for a minimum); float codes one fma
a weight and row. The integer products take 2 operations a weight and row on the matrix units, which are so fast that
they never set the floor.
"""

from dataclasses import dataclass

from strata.quant.layout import BLOCK_COLUMNS, Array, MatrixLayout, MinKind

FLOAT_LANES = 128  # of a multiprocessor of this generation, one operation a clock each
CLOCK_HZ = 1.98e9  # the highest that the H200 reported


@dataclass(frozen=True)
class Rates:
    """What a device can do in a second, measured or counted."""

    read_bytes: float
    float_operations: float

    @classmethod
    def of(cls, read_gb_per_s: float, multiprocessors: int) -> "Rates":
        """Memory by measurement, arithmetic by counting."""
        return cls(read_gb_per_s * 1e9, multiprocessors * FLOAT_LANES * CLOCK_HZ)


def matrix_bytes(layout: MatrixLayout) -> int:
    """Bytes of a matrix's arrays."""
    return sum(layout.array_bytes(array) for array in Array)


def float_operations(layout: MatrixLayout, rows: int) -> int:
    """Float operations of one matrix times `rows` rows."""
    if layout.code.is_float:
        return layout.rows * layout.columns * rows
    sums = layout.columns // min(layout.sub_block, BLOCK_COLUMNS)
    return layout.rows * sums * rows * (3 if layout.min_kind is MinKind.NONE else 5)


def floor_seconds(read: float, operations: float, rates: Rates) -> float:
    """`read` bytes and `operations`, whichever takes longer."""
    return max(read / rates.read_bytes, operations / rates.float_operations)
