"""Which launch a matrix gets on a device: from the table of measurements, else stated defaults.

Pure: the device is its name, and nothing is tuned at run time. Knows no kernel.
"""

from collections.abc import Sequence
from dataclasses import replace

from strata.kernels.launch_shapes import (
    ROW_BUCKETS,
    LaunchShape,
    ShapeClass,
    WeightClass,
    dense_class,
    row_bucket,
    weight_class,
)
from strata.kernels.measured import MEASURED
from strata.quant.layout import MatrixLayout

MOST_DEFAULT_ROWS = 8


def packed_launch(device: str, layout: MatrixLayout, rows: int) -> LaunchShape:
    """The launch of a dense matrix times `rows` rows."""
    return _find(device, dense_class(layout), weight_class(layout), rows)


def joined_launches(device: str, layouts: Sequence[MatrixLayout], rows: int) -> list[LaunchShape]:
    """The launches of dense matrices that are multiplied by one kernel."""
    return in_one_launch([packed_launch(device, layout, rows) for layout in layouts], layouts)


def in_one_launch(own: Sequence[LaunchShape], layouts: Sequence[MatrixLayout]) -> list[LaunchShape]:
    """Launches of several matrices made fit for one kernel: all with the warps and registers of the one of most warps.

    Each keeps its own rows and the loads that it has in flight as far as registers go, but that integer codes go to the
    matrix units together.
    """
    leader = max(own, key=lambda launch: launch.warps)
    return [_beside(leader, launch, layout) for launch, layout in zip(own, layouts, strict=True)]


def _beside(leader: LaunchShape, own: LaunchShape, layout: MatrixLayout) -> LaunchShape:
    if leader.uses_matrix_units and not layout.code.is_float and not own.uses_matrix_units:
        return leader
    unroll, prefetches = own.unroll * own.warps // leader.warps, own.prefetches
    if leader.registers and own.registers and own.registers > leader.registers:  # what is in flight waits in registers
        unroll, prefetches = unroll * leader.registers // own.registers, False
    return replace(own, warps=leader.warps, unroll=max(1, unroll), registers=leader.registers, prefetches=prefetches)


def expert_launch(
    device: str, layout: MatrixLayout, most_rows: int, is_in_place: bool, is_down: bool = False
) -> LaunchShape:
    """The launch of gate and up or of down of experts of which none has more than `most_rows` rows.

    is_in_place: some may lie in main memory. Whatever is launched, the link sets their pace: such lists take the
    launches that the others want, unless the table has one for them.
    """
    weights, table = weight_class(layout), MEASURED.get(device, {})
    own = [ShapeClass.IN_PLACE] * is_in_place + [ShapeClass.DOWN] * is_down
    shape = next((shape for shape in own if (shape, weights) in table), ShapeClass.EXPERTS)
    return _find(device, shape, weights, most_rows)


def default_launch(rows: int) -> LaunchShape:
    """For devices and classes without measurements: no matrix units, one warp a tile, the compiler's registers."""
    at_once = min(row_bucket(rows), MOST_DEFAULT_ROWS)
    return LaunchShape(rows=at_once, unroll=2 if at_once <= 2 else 1)


def _find(device: str, shape: ShapeClass, weights: WeightClass, rows: int) -> LaunchShape:
    found = MEASURED.get(device, {}).get((shape, weights))
    return default_launch(rows) if found is None else found[ROW_BUCKETS.index(row_bucket(rows))]
