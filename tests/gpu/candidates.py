"""Launch shapes worth timing, and the weights that they are timed on. Knows no timing and no device."""

from dataclasses import dataclass

from strata.kernels.launch_shapes import (
    ROW_BUCKETS,
    LaunchShape,
    ShapeClass,
    dense_class,
    dp4a_launch,
    matrix_launch,
    weight_class,
)
from tests.gpu.weights import KIND

DENSE_SIZES = ((2560, 6144), (10240, 2560), (248320, 2560))  # outputs, columns; the last is a head
DENSE_KINDS = ("q8_0", "q4_0", "q2_0", "mxfp4", "bf16")
EXPERT_KINDS = ("q4_0", "q8_0", "q2_0", "mxfp4")
MOST_OUTPUTS = {"q2_0": 20_000, "mxfp4": 20_000, "q4_0": 20_000}  # a head is stored in 8 or 16 bits


def dp4a(rows: int, is_float: bool = False) -> list[LaunchShape]:
    """Without matrix units."""
    shapes: list[tuple[int, int, int | None]] = [(1, 1, None), (1, 2, 255), (4, 1, 64)]
    if rows <= 4:
        shapes += [(1, 2, None), (1, 1, 168), (1, 2, 128), (1, 4, 128), (1, 4, 192), (2, 2, 96), (4, 2, 64), (4, 4, 96)]
    if is_float:
        shapes += [(1, 4, 255), (1, 8, 192), (4, 8, 128)]
    return [dp4a_launch(rows, *shape) for shape in shapes]


def on_matrix_units(rows: int) -> list[LaunchShape]:
    """By int8 products."""
    shapes: dict[int, list[tuple[int, int | None]]] = {
        8: [(1, None), (1, 48), (2, 64), (2, 80), (4, 128)],
        16: [(1, 64), (2, 80), (2, 128)],
        32: [(1, 80), (1, 128), (2, 128)],
    }
    return [matrix_launch(rows, *shape) for shape in shapes[rows]]


def dense_candidates(rows: int, is_float: bool) -> list[LaunchShape]:
    """Every launch that may be the best of a dense matrix for this many rows."""
    found = [] if rows > 8 and not is_float else dp4a(min(rows, 8), is_float)
    if rows in (4, 8) or (rows > 8 and is_float):
        found += dp4a(min(rows, 8) // 2, is_float)
    if not is_float:
        found += [launch for unit in (8, 16, 32) if unit <= max(rows, 8) for launch in on_matrix_units(unit)]
    return found


def expert_candidates(rows: int) -> list[LaunchShape]:
    """The same for experts, of which most have one row whatever the window has."""
    found = [launch for at_once in (1, 2, 4, 8) if at_once <= rows for launch in dp4a(at_once)]
    return found + (on_matrix_units(8) if rows >= 8 else [])


@dataclass(frozen=True)
class Line:
    """One line of the table: a kind of weights in a shape class, and a bucket of rows."""

    shape: ShapeClass
    kind: str
    rows: int

    @property
    def key(self) -> str:
        """Its class, as the table spells it."""
        weights = weight_class(KIND[self.kind].layout(16, 256))
        return f"(ShapeClass.{self.shape.name}, WeightClass.{weights.name})"


def spelled(launch: LaunchShape) -> str:
    """A launch as the table spells it."""
    asks = ", prefetches=True" if launch.prefetches else ""
    registers = ("" if launch.registers is None else f", {launch.registers}") + asks
    if launch.side > 1 or launch.outputs < 16:
        shape = (launch.rows, launch.outputs, launch.side, launch.warps, launch.unroll, launch.registers)
        return f"few_launch({', '.join(map(str, shape))}, {launch.prefetches})"
    if launch.uses_matrix_units:
        return f"matrix_launch({launch.rows}, {launch.unroll}{registers})"
    return f"dp4a_launch({launch.rows}, {launch.warps}, {launch.unroll}{registers})"


def dense_lines() -> list[tuple[Line, int, int]]:
    """Lines with the outputs and columns that they are timed on."""
    return [
        (Line(dense_class(KIND[kind].layout(outputs, columns)), kind, rows), outputs, columns)
        for outputs, columns in DENSE_SIZES
        for kind in DENSE_KINDS
        if outputs <= MOST_OUTPUTS.get(kind, outputs)
        for rows in ROW_BUCKETS
    ]


def dense_kernels() -> list[tuple[str, LaunchShape]]:
    """Each kernel of a dense matrix once: kind and launch."""
    return list(
        {
            (kind, launch): None
            for kind in DENSE_KINDS
            for r in ROW_BUCKETS
            for launch in dense_candidates(r, kind == "bf16")
        }
    )


def expert_kernels() -> list[tuple[str, LaunchShape]]:
    """Each kernel of experts once."""
    return [(kind, launch) for kind in EXPERT_KINDS for launch in dict.fromkeys(expert_candidates(ROW_BUCKETS[-1]))]
