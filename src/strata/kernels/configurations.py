"""Which launch a matrix gets on a device: from the table of measurements, else stated defaults.

Pure: the device is its name, and nothing is tuned at run time. Knows no kernel.
"""

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


def expert_launch(device: str, layout: MatrixLayout, most_rows: int, is_in_place: bool) -> LaunchShape:
    """The launch of gate and up or down of experts of which none has more than `most_rows` rows."""
    shape = ShapeClass.IN_PLACE if is_in_place else ShapeClass.EXPERTS
    return _find(device, shape, weight_class(layout), most_rows)


def default_launch(rows: int) -> LaunchShape:
    """For devices and classes without measurements: no matrix units, one warp a tile, the compiler's registers."""
    at_once = min(row_bucket(rows), MOST_DEFAULT_ROWS)
    return LaunchShape(rows=at_once, unroll=2 if at_once <= 2 else 1)


def _find(device: str, shape: ShapeClass, weights: WeightClass, rows: int) -> LaunchShape:
    found = MEASURED.get(device, {}).get((shape, weights))
    return default_launch(rows) if found is None else found[ROW_BUCKETS.index(row_bucket(rows))]
