"""Which matrices are decoded by pairs, and the constants that pairs.py is compiled with. Pure; knows no kernel."""

import struct

from strata.quant.layout import Code, MatrixLayout, MinKind, ScaleKind

MOST_INTEGER = 15
TABLE_BIAS = 16  # bytes of a table are entry + 16


def suits_pairs(layout: MatrixLayout) -> bool:
    """Whether a matrix's weights have the same bits by pairs."""
    return (
        layout.code is Code.CODE4
        and layout.sub_block <= 32
        and layout.min_kind is MinKind.NONE
        and layout.scale_kind in (ScaleKind.F16, ScaleKind.E8M0, ScaleKind.UE4M3)
        and all(abs(entry) <= MOST_INTEGER for entry in layout.table)
    )


def minus_pair(bias: int) -> int:
    """The pair of two bf16 that are -(128 + bias), as an int32."""
    high = struct.unpack("<I", struct.pack("<f", -(128.0 + bias)))[0] >> 16
    both = high << 16 | high
    return int(both - (1 << 32) if both >> 31 else both)
