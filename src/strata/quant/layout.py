"""Where the arrays of a packed matrix and of an expert's blob lie: sizes and offsets, as docs/storage-codes.md says.

Pure integers; knows no tensor and no published format.
"""

from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from functools import cached_property

TILE_ROWS = 16
BLOCK_COLUMNS = 32
SUPER_COLUMNS = 256
ALIGNMENT = 64  # every array begins at a multiple
BLOB_ALIGNMENT = 256
MATRICES_OF_AN_EXPERT = 3  # gate, up, down


class Code(Enum):
    """How a weight is stored."""

    CODE2 = "code2"
    CODE4 = "code4"
    CODE8 = "code8"
    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    FP8 = "fp8"

    @property
    def bits(self) -> int:
        """Bits that a weight takes without its scales."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """True for codes that hold values of their own, not integers."""
        return self not in (Code.CODE2, Code.CODE4, Code.CODE8)


_BITS = {
    Code.CODE2: 2,
    Code.CODE4: 4,
    Code.CODE8: 8,
    Code.F32: 32,
    Code.BF16: 16,
    Code.F16: 16,
    Code.FP8: 8,
}


class ScaleKind(IntEnum):
    """What a sub-block's scale is; the numbers are those of the C ABI."""

    F16 = 0
    E8M0 = 1
    UE4M3 = 2
    SUPER = 3  # f16 of 256 columns times int8 of the sub-block
    F32 = 4
    NONE = 5  # float codes without scales


class MinKind(IntEnum):
    """What is subtracted from a sub-block's weights."""

    NONE = 0
    F16 = 1
    SUPER = 2  # f16 of 256 columns times uint8 of the sub-block


class Array(IntEnum):
    """The arrays of a matrix, in the order in which they lie."""

    CODES = 0
    SCALES = 1
    SUPER_SCALES = 2
    MINS = 3
    SUPER_MINS = 4


_SCALE_BYTES = {
    ScaleKind.F16: 2,
    ScaleKind.E8M0: 1,
    ScaleKind.UE4M3: 1,
    ScaleKind.SUPER: 1,
    ScaleKind.F32: 4,
    ScaleKind.NONE: 0,
}
_MIN_BYTES = {MinKind.NONE: 0, MinKind.F16: 2, MinKind.SUPER: 1}


def round_up(size: int, multiple: int) -> int:
    """The least multiple that is not below `size`."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class Place:
    """Bytes [offset, offset + size) of a buffer."""

    offset: int
    size: int


@dataclass(frozen=True)
class MatrixLayout:
    """The description of a packed matrix of `rows` outputs and `columns` inputs, apart from its values.

    Raises ValueError for a combination that docs/storage-codes.md does not have.
    """

    rows: int
    columns: int
    code: Code
    sub_block: int = 32  # columns that share a scale; fp8: any number, the last sub-block may be short
    scale_kind: ScaleKind = ScaleKind.NONE
    min_kind: MinKind = MinKind.NONE
    table: tuple[int, ...] = ()  # 16 integers for code4, 4 for code2, none otherwise

    def __post_init__(self) -> None:
        wrong = self._what_is_wrong()
        if wrong:
            raise ValueError(f"a packed matrix of {self.rows} x {self.columns} in {self.code.value}: {wrong}")

    def _what_is_wrong(self) -> str:
        if self.rows < 1 or self.columns < 1:
            return "rows and columns must be at least 1"
        if self.code.is_float:
            wanted = ScaleKind.F32 if self.code is Code.FP8 else ScaleKind.NONE
            if self.scale_kind is not wanted or self.min_kind is not MinKind.NONE or self.table:
                return f"a float code has no table and no minimum, and its scale kind is {wanted.name}"
            return "" if self.sub_block >= 1 else "sub_block must be at least 1"
        if self.sub_block not in (16, 32, 64) or self.columns % max(self.sub_block, BLOCK_COLUMNS):
            return f"sub_block {self.sub_block} must be 16, 32 or 64 and, like 32, divide the columns"
        if self.scale_kind is ScaleKind.NONE:
            return "an integer code needs scales"
        if (self.scale_kind is ScaleKind.SUPER or self.min_kind is MinKind.SUPER) and self.columns % SUPER_COLUMNS:
            return "super scales need columns divisible by 256"
        entries = {Code.CODE2: 4, Code.CODE4: 16, Code.CODE8: 0}[self.code]
        if len(self.table) != entries or any(not -128 <= entry <= 127 for entry in self.table):
            return f"the table must hold {entries} integers of 8 bits"
        return ""

    @property
    def tiles(self) -> int:
        """Tiles of 16 rows, the last one filled up with zero rows."""
        return -(-self.rows // TILE_ROWS)

    @property
    def blocks(self) -> int:
        """Blocks of 32 columns of an integer code."""
        return self.columns // BLOCK_COLUMNS

    @property
    def sub_blocks(self) -> int:
        """Groups of columns that share a scale."""
        return -(-self.columns // self.sub_block)

    @property
    def super_blocks(self) -> int:
        """Groups of 256 columns that share a super scale."""
        return self.columns // SUPER_COLUMNS

    def array_bytes(self, array: Array) -> int:
        """Bytes of one array; 0 if the matrix has none."""
        tile_groups = self.tiles * TILE_ROWS
        if array is Array.CODES:
            return tile_groups * self.columns * self.code.bits // 8
        if array is Array.SCALES:
            return tile_groups * self.sub_blocks * _SCALE_BYTES[self.scale_kind]
        if array is Array.MINS:
            return tile_groups * self.sub_blocks * _MIN_BYTES[self.min_kind]
        is_super = self.scale_kind is ScaleKind.SUPER if array is Array.SUPER_SCALES else self.min_kind is MinKind.SUPER
        return tile_groups * self.super_blocks * 2 if is_super else 0

    def places(self) -> dict[Array, Place]:
        """Where each array lies when the matrix stands by itself."""
        places, offset = {}, 0
        for array in Array:
            places[array] = Place(offset, self.array_bytes(array))
            offset = round_up(offset + places[array].size, ALIGNMENT)
        return places

    @property
    def total_bytes(self) -> int:
        """Bytes of all arrays, each at a multiple of 64."""
        return sum(round_up(self.array_bytes(array), ALIGNMENT) for array in Array)

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight takes with its share of the scales; filled-up rows and alignment not counted."""
        whole = replace(self, rows=TILE_ROWS)
        return sum(whole.array_bytes(array) for array in Array) * 8 / (TILE_ROWS * self.columns)


@dataclass(frozen=True)
class BlobLayout:
    """The description of one expert's blob: gate and up [width, hidden], down [hidden, width]."""

    gate: MatrixLayout
    up: MatrixLayout
    down: MatrixLayout

    def __post_init__(self) -> None:
        width, hidden = self.gate.rows, self.gate.columns
        if (self.up.rows, self.up.columns) != (width, hidden) or (self.down.rows, self.down.columns) != (hidden, width):
            raise ValueError(
                f"an expert's gate {width} x {hidden}, up {self.up.rows} x {self.up.columns} and "
                f"down {self.down.rows} x {self.down.columns} do not fit together"
            )

    @property
    def matrices(self) -> tuple[MatrixLayout, MatrixLayout, MatrixLayout]:
        """Gate, up, down: the order of everything in a blob."""
        return self.gate, self.up, self.down

    def places(self) -> tuple[dict[Array, Place], dict[Array, Place], dict[Array, Place]]:
        """Where the arrays of gate, up and down lie in the blob: first all codes, then the scales of each."""
        found: tuple[dict[Array, Place], ...] = ({}, {}, {})
        offset = 0
        scale_arrays = [array for array in Array if array is not Array.CODES]
        order = [(index, Array.CODES) for index in range(MATRICES_OF_AN_EXPERT)]
        order += [(index, array) for index in range(MATRICES_OF_AN_EXPERT) for array in scale_arrays]
        for index, array in order:
            size = self.matrices[index].array_bytes(array)
            found[index][array] = Place(offset, size)
            offset = round_up(offset + size, ALIGNMENT)
        return found[0], found[1], found[2]

    @cached_property
    def post_scales(self) -> Place:
        """Three float32: the post scales of gate, up and down."""
        arrays = sum(round_up(matrix.array_bytes(array), ALIGNMENT) for matrix in self.matrices for array in Array)
        return Place(arrays, 4 * MATRICES_OF_AN_EXPERT)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of the blob; a multiple of 256, so that blobs stand one after another."""
        return round_up(self.post_scales.offset + self.post_scales.size, BLOB_ALIGNMENT)
