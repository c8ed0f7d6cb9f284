"""What a launch of a matrix kernel is made of, and the classes of weights that share one. Knows no device, no kernel.

Every launch shape gives the same bits; a test and the GPU command's gate hold them against each other.
"""

from dataclasses import dataclass
from enum import Enum

from strata.quant.layout import Code, MatrixLayout

ROW_BUCKETS = (1, 2, 4, 8, 16, 32)  # more rows are groups of the last
FEW_TILES = 64  # half the multiprocessors of a large GPU: a matrix of fewer tiles cannot keep its memory busy
NARROW_TILES = 400  # a dense matrix of fewer tiles has too few for one warp a tile to fill a large GPU


@dataclass(frozen=True)
class LaunchShape:
    """One launch: how many rows share one reading of the weights, on which unit, and how loads are spread."""

    rows: int = 1  # 8, 16 or 32 on the matrix units
    warps: int = 1  # of a tile of 16 outputs: eight on the matrix units
    unroll: int = 1  # loop steps whose loads go out together
    uses_matrix_units: bool = False
    registers: int | None = None  # most of a thread: the compiler then orders loads for speed, not for few registers
    outputs: int = 16  # of a program: 4, 8 or 16; fewer than 16 without matrix units, in dense matrices
    side: int = 1  # dense ones without matrix units, side by side: blocks of a lane, 1, 2, 4; float codes: 1 to `rows`
    prefetches: bool = False  # dense ones: a program asks for all its weights before its predecessor has ended
    alone: int | None = None  # experts: unroll of what has one row left, where `rows` are more; none: as the others
    tiles: int = 1  # experts' down: tiles of a program, each with `warps`; without matrix units

    @property
    def options(self) -> dict[str, int | bool | None]:
        """How a matrix kernel is compiled."""
        return {"num_warps": self.warps, "maxnreg": self.registers, "enable_fp_fusion": False}

    @property
    def constants(self) -> dict[str, int | bool]:
        """Constexpr arguments of every matrix kernel."""
        return {"ROWS": self.rows, "UNROLL": self.unroll, "ON_MATRIX_UNITS": self.uses_matrix_units}

    @property
    def of_outputs(self) -> dict[str, int | bool]:
        """Constexpr arguments of the kernels of dense matrices beside those."""
        return {"OUTPUTS": self.outputs, "SIDE": self.side}


def dp4a_launch(
    rows: int, warps: int, unroll: int, registers: int | None = None, prefetches: bool = False
) -> LaunchShape:
    """Each row by itself, a few sharing the weights that were read."""
    return LaunchShape(rows, warps, unroll, False, registers, prefetches=prefetches)


def matrix_launch(rows: int, unroll: int, registers: int | None = None, prefetches: bool = False) -> LaunchShape:
    """Groups of eight rows on the matrix units, a warp for each of the eight lanes."""
    return LaunchShape(rows, 8, unroll, True, registers, prefetches=prefetches)


def few_launch(
    rows: int, outputs: int, side: int, warps: int, unroll: int, registers: int | None = None, prefetches: bool = True
) -> LaunchShape:
    """For matrices of few tiles: programs of some outputs, several blocks of a lane or rows side by side."""
    return LaunchShape(rows, warps, unroll, False, registers, outputs, side, prefetches)


def listed_launch(
    rows: int,
    warps: int,
    unroll: int,
    registers: int | None = None,
    alone: int | None = None,
    tiles: int = 1,
) -> LaunchShape:
    """For listed experts, of which most have one row whatever the window has."""
    return LaunchShape(rows, warps, unroll, registers=registers, alone=alone, tiles=tiles)


class ShapeClass(Enum):
    """Where a matrix's work comes from."""

    EXPERTS = "experts"  # listed experts in the GPU's memory
    DOWN = "down"  # their down matrices, where these want another launch than gate and up
    IN_PLACE = "in place"  # listed experts in pinned host memory
    FEW = "few"  # one dense matrix of very few tiles
    NARROW = "narrow"  # one dense matrix of few tiles
    WIDE = "wide"  # one dense matrix of many


class WeightClass(Enum):
    """What a weight costs to decode."""

    CODE2 = "code2"
    CODE4 = "code4"  # the integer is code + offset
    CODE4_TABLE = "code4 table"
    CODE8 = "code8"
    FLOAT = "float"


def dense_class(layout: MatrixLayout) -> ShapeClass:
    """The class of a matrix that stands by itself."""
    if layout.tiles < FEW_TILES:
        return ShapeClass.FEW
    return ShapeClass.NARROW if layout.tiles < NARROW_TILES else ShapeClass.WIDE


def weight_class(layout: MatrixLayout) -> WeightClass:
    """The class of a matrix's code."""
    if layout.code.is_float:
        return WeightClass.FLOAT
    if layout.code is Code.CODE4:
        return WeightClass.CODE4 if is_linear(layout.table) else WeightClass.CODE4_TABLE
    return WeightClass.CODE2 if layout.code is Code.CODE2 else WeightClass.CODE8


def is_linear(table: tuple[int, ...]) -> bool:
    """Whether a code's integer is code + offset, so that no table is looked up."""
    return bool(table) and table == tuple(range(table[0], table[0] + len(table)))


def row_bucket(rows: int) -> int:
    """The least bucket that holds `rows`, or the last."""
    return next((bucket for bucket in ROW_BUCKETS if bucket >= rows), ROW_BUCKETS[-1])
