"""What a weight takes after packing, by published format: for `strata inspect` and docs/storage-codes.md.

Knows the names that files give their formats; reads nothing.
"""

from dataclasses import dataclass

from strata.quant.formats import ALL, by_name
from strata.quant.layout import Code, MatrixLayout, ScaleKind

TYPICAL_COLUMNS = 2560  # every block divides it
_FP8 = "F8_E4M3"
_FP8_BLOCK = 128


@dataclass(frozen=True)
class Packed:
    """One format: bits a weight in the file and in memory, scales included."""

    name: str
    code: str
    published_bits: float
    packed_bits: float

    @property
    def grows(self) -> bool:
        """True if memory holds clearly more than the file: an i-quant in code4, five bits in code8."""
        return self.packed_bits > 1.1 * self.published_bits


def packed_format(name: str) -> Packed | None:
    """By the name that a GGUF or safetensors file writes; None for what is no weight format (`I64`)."""
    if name == _FP8:
        layout = MatrixLayout(16, TYPICAL_COLUMNS, Code.FP8, _FP8_BLOCK, ScaleKind.F32)
        return Packed(name, layout.code.value, 8 + 32 / _FP8_BLOCK**2, layout.bits_per_weight)
    if name not in {kept.name for kept in ALL}:
        return None
    kept = by_name(name)
    layout = kept.layout(16, TYPICAL_COLUMNS)
    return Packed(name, layout.code.value, kept.bits_per_weight, layout.bits_per_weight)


def as_markdown() -> list[str]:
    """The table of docs/storage-codes.md, line by line. A test holds the file against it."""
    lines = ["| format | bits a weight | code | packed | |", "|---|---|---|---|---|"]
    for name in (*(kept.name for kept in ALL), _FP8):
        found = packed_format(name)
        assert found is not None
        mark = "grows" if found.grows else ""
        lines.append(f"| {name} | {found.published_bits:.4g} | {found.code} | {found.packed_bits:.4g} | {mark} |")
    return lines
