"""The best launches, by measurement, one table a device. Data only.

Written by `python -m tests.gpu.tune`, which prints the candidates: medians of graph replays over weights that come from
memory. Dense matrices of 2,560 x 6,144 (narrow), 10,240 x 2,560 and 248,320 x 2,560 (wide); gate and up and down of
experts of 2,560 x 640: 10 and 40 of them for one row; for more rows windows that choose 10 of 512 at random, and of
launches within 6 % there the best where all rows choose the same 40.

As a window launches them, one behind the other, by `python -m tests.gpu.tune_few` and `tests.gpu.tune_experts`:
matrices of very few tiles, [324, 10,240], and of float codes; 8-bit ones that are narrow or wide at 1, 4 and 8 rows;
experts of 4 bits at 1, 4 and 8 rows.

NVIDIA H200: 2026-11-30, torch 2.11, Triton 3.6, driver 580.
"""

from strata.kernels.launch_shapes import (
    LaunchShape,
    ShapeClass,
    WeightClass,
    dp4a_launch,
    few_launch,
    listed_launch,
    matrix_launch,
)

Key = tuple[ShapeClass, WeightClass]

FEW_INTEGER = (
    few_launch(1, 8, 4, 8, 10, 255),
    few_launch(1, 8, 4, 8, 10, 255),
    few_launch(2, 8, 4, 8, 5, 255),
    matrix_launch(8, 10, 255, prefetches=True),
    matrix_launch(8, 4, 128, prefetches=True),
    matrix_launch(8, 4, 128, prefetches=True),
)
FEW_FLOAT = (
    few_launch(1, 8, 1, 4, 80, 255),
    few_launch(2, 8, 2, 8, 32, 128),
    few_launch(2, 8, 2, 8, 32, 128),
    few_launch(4, 8, 4, 8, 32, 128),
    few_launch(8, 8, 4, 8, 16, 128),
    few_launch(8, 16, 8, 8, 8, 128),
)

# One launch for each of ROW_BUCKETS. Experts read in place have none of their own: whatever is launched, the link sets
# their pace, so a list in which some are takes the launches of the others.
MEASURED: dict[str, dict[Key, tuple[LaunchShape, ...]]] = {
    "NVIDIA H200": {
        (ShapeClass.EXPERTS, WeightClass.CODE4): (
            dp4a_launch(1, 1, 2, 128),
            listed_launch(4, 1, 1, 128, alone=2),
            listed_launch(4, 1, 1, 128, alone=2),
            listed_launch(4, 1, 1, 128, alone=2),
            listed_launch(4, 1, 1, 128, alone=2),
            dp4a_launch(4, 1, 2),
        ),
        (ShapeClass.DOWN, WeightClass.CODE4): (
            listed_launch(1, 1, 3, 128, tiles=4),
            listed_launch(4, 1, 1, 128, alone=3, tiles=4),
            listed_launch(4, 1, 1, 128, alone=3, tiles=4),
            listed_launch(4, 1, 1, 128, alone=3, tiles=4),
            listed_launch(2, 1, 1, 80, alone=3, tiles=4),
            dp4a_launch(4, 1, 2),
        ),
        (ShapeClass.EXPERTS, WeightClass.CODE8): (
            dp4a_launch(1, 1, 4, 128),
            dp4a_launch(2, 1, 2),
            dp4a_launch(4, 1, 1, 168),
            dp4a_launch(8, 1, 1),
            dp4a_launch(4, 1, 1, 168),
            dp4a_launch(4, 1, 1, 168),
        ),
        (ShapeClass.EXPERTS, WeightClass.CODE2): (
            dp4a_launch(1, 1, 2),
            dp4a_launch(2, 1, 2),
            dp4a_launch(2, 1, 2),
            dp4a_launch(2, 1, 2),
            dp4a_launch(2, 1, 2),
            dp4a_launch(2, 1, 2),
        ),
        (ShapeClass.EXPERTS, WeightClass.CODE4_TABLE): (
            dp4a_launch(1, 2, 2, 96),
            dp4a_launch(2, 2, 2, 96),
            dp4a_launch(4, 1, 2, 128),
            dp4a_launch(2, 1, 1),
            dp4a_launch(2, 1, 1),
            dp4a_launch(4, 1, 1),
        ),
        (ShapeClass.FEW, WeightClass.CODE8): FEW_INTEGER,
        (ShapeClass.FEW, WeightClass.CODE4): FEW_INTEGER,
        (ShapeClass.FEW, WeightClass.CODE2): FEW_INTEGER,
        (ShapeClass.FEW, WeightClass.CODE4_TABLE): FEW_INTEGER,
        (ShapeClass.FEW, WeightClass.FLOAT): FEW_FLOAT,
        (ShapeClass.NARROW, WeightClass.CODE8): (
            few_launch(1, 8, 2, 4, 6, 255),
            matrix_launch(8, 8, 255, prefetches=True),
            matrix_launch(8, 8, 255, prefetches=True),
            matrix_launch(8, 8, 255, prefetches=True),
            matrix_launch(8, 4, 128),
            matrix_launch(16, 2, 128),
        ),
        (ShapeClass.NARROW, WeightClass.CODE4): (
            few_launch(1, 16, 2, 4, 6, 255, True),
            matrix_launch(8, 4, 128),
            matrix_launch(8, 6, 128, prefetches=True),
            matrix_launch(8, 6, 128, prefetches=True),
            matrix_launch(8, 4, 128),
            matrix_launch(16, 2, 80),
        ),
        (ShapeClass.NARROW, WeightClass.CODE2): (
            dp4a_launch(1, 4, 4, 96),
            dp4a_launch(2, 2, 2, 96),
            dp4a_launch(2, 4, 4, 96),
            matrix_launch(8, 4, 128),
            matrix_launch(16, 2, 80),
            matrix_launch(16, 2, 80),
        ),
        (ShapeClass.NARROW, WeightClass.CODE4_TABLE): (
            dp4a_launch(1, 4, 4, 96),
            dp4a_launch(2, 4, 4, 96),
            dp4a_launch(2, 4, 4, 96),
            matrix_launch(8, 4, 128),
            matrix_launch(16, 2, 128),
            matrix_launch(32, 2, 128),
        ),
        (ShapeClass.NARROW, WeightClass.FLOAT): (
            dp4a_launch(1, 4, 8, 128),
            dp4a_launch(2, 4, 8, 128),
            dp4a_launch(2, 4, 8, 128),
            dp4a_launch(4, 4, 8, 128),
            dp4a_launch(8, 4, 8, 128),
            dp4a_launch(4, 1, 8, 192),
        ),
        (ShapeClass.WIDE, WeightClass.CODE8): (
            dp4a_launch(1, 2, 5, 168),
            matrix_launch(8, 2, 80),
            dp4a_launch(4, 1, 2, 255),
            matrix_launch(8, 2, 80),
            matrix_launch(16, 2, 128),
            matrix_launch(32, 1, 80),
        ),
        (ShapeClass.WIDE, WeightClass.CODE4): (
            dp4a_launch(1, 2, 5, 168),
            dp4a_launch(2, 2, 2, 96),
            dp4a_launch(4, 1, 2, 255),
            matrix_launch(8, 5, 96, prefetches=True),
            matrix_launch(16, 2, 80),
            matrix_launch(32, 1, 80),
        ),
        (ShapeClass.WIDE, WeightClass.CODE2): (
            dp4a_launch(1, 4, 2, 64),
            dp4a_launch(2, 2, 2, 96),
            dp4a_launch(2, 2, 2, 96),
            dp4a_launch(4, 2, 2, 96),
            matrix_launch(16, 2, 80),
            matrix_launch(32, 1, 80),
        ),
        (ShapeClass.WIDE, WeightClass.CODE4_TABLE): (
            dp4a_launch(1, 4, 2, 64),
            dp4a_launch(2, 4, 4, 96),
            dp4a_launch(4, 4, 4, 96),
            matrix_launch(8, 2, 80),
            matrix_launch(16, 2, 128),
            matrix_launch(32, 2, 128),
        ),
        (ShapeClass.WIDE, WeightClass.FLOAT): (
            dp4a_launch(1, 4, 8, 128),
            dp4a_launch(2, 1, 8, 192),
            dp4a_launch(2, 1, 8, 192),
            dp4a_launch(4, 1, 8, 192),
            dp4a_launch(8, 1, 4, 255),
            dp4a_launch(8, 1, 4, 255),
        ),
    },
}
