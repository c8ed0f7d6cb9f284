"""The storage types of GGUF: number, name, how many weights a block holds and how many bytes it takes.

Knows every type that weights are published in, so that its sizes can be checked; which are decoded is `quant`'s part.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class GgmlType:
    """One storage type. A row of a tensor is a whole number of blocks."""

    number: int
    name: str
    block_weights: int
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` weights, a multiple of `block_weights`."""
        return columns // self.block_weights * self.block_bytes


_TABLE = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)
TYPES = {number: GgmlType(number, name, weights, size) for number, name, weights, size in _TABLE}
TYPE_OF_NAME = {found.name: found for found in TYPES.values()}

# `general.file_type` of a file whose matrices are mostly of this type: a word for people, no part of the format.
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 15,
    "Q5_K": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ3_XXS": 23, "IQ4_NL": 25, "IQ3_S": 26, "IQ2_S": 28,
    "IQ4_XS": 30, "BF16": 32, "MXFP4": 38, "NVFP4": 39, "Q2_0": 41,
}  # fmt: skip
