"""What `tune_few` times: dense matrices of a decode window, and launches that may be the best of each. No timing.

A launch of fewer rows than there are makes groups of rows: more programs, which read the weights again from the cache.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from strata.kernels.configurations import in_one_launch, packed_launch
from strata.kernels.launch_shapes import (
    LaunchShape,
    ShapeClass,
    WeightClass,
    dense_class,
    dp4a_launch,
    few_launch,
    matrix_launch,
    weight_class,
)
from strata.quant.layout import MatrixLayout
from tests.gpu.weights import KIND

Launches = tuple[LaunchShape, ...]  # one a matrix of a chain
TIMED_ROWS = (1, 4, 8, 2, 32)  # in this order
HEAD_OUTPUTS = 248320


@dataclass(frozen=True)
class Chain:
    """Matrices of one launch: what they are asked for by, kinds and outputs, and their columns."""

    name: str
    kinds: tuple[str, ...]
    outputs: tuple[int, ...]
    columns: int

    def layouts(self, most_outputs: int | None = None) -> list[MatrixLayout]:
        """Of each matrix; with at most so many outputs, where only compilation matters."""
        return [
            KIND[kind].layout(min(outputs, most_outputs or outputs), self.columns)
            for kind, outputs in zip(self.kinds, self.outputs, strict=True)
        ]

    @property
    def entry(self) -> tuple[ShapeClass, WeightClass]:
        """The table's entry of the first matrix, which the candidates are for."""
        return dense_class(self.layouts()[0]), weight_class(self.layouts()[0])

    def current(self, device: str, rows: int) -> Launches:
        """The table's launches."""
        layouts = self.layouts()
        return tuple(in_one_launch([packed_launch(device, layout, rows) for layout in layouts], layouts))

    def __str__(self) -> str:
        sizes = zip(self.kinds, self.outputs, strict=True)
        return " + ".join(f"{kind} [{outputs}, {self.columns}]" for kind, outputs in sizes)


FEW = Chain("few", ("q8_0",), (324,), 10240)
ROUTER = Chain("router", ("f32", "q8_0"), (512, 1280), 2560)  # and the shared expert's gate and up
NARROW = Chain("narrow", ("q8_0",), (2560,), 6144)
NARROW_4 = Chain("narrow_4", ("q4_0",), (2560,), 6144)
WIDE = Chain("wide", ("q8_0",), (16480,), 2560)
HEAD = Chain("head", ("q8_0",), (HEAD_OUTPUTS,), 2560)
WIDE_4 = Chain("wide_4", ("q4_0",), (16480,), 2560)
HEAD_4 = Chain("head_4", ("q4_0",), (HEAD_OUTPUTS,), 2560)
CHAINS = (NARROW, WIDE, HEAD, FEW, ROUTER, NARROW_4, WIDE_4, HEAD_4)

_NARROW_UNITS = [
    *(matrix_launch(8, 4, 128, asks) for asks in (False, True)),
    *(matrix_launch(8, unroll, registers, True) for unroll, registers in ((6, 168), (8, 255), (12, 255))),
    few_launch(2, 8, 4, 8, 3, 255),
]
_NARROW = {
    1: [
        *(dp4a_launch(1, 4, 4, 96, asks) for asks in (False, True)),
        dp4a_launch(1, 4, 6, 128, True),
        *(few_launch(1, outputs, 2, 4, 6, 255) for outputs in (8, 16)),
        *(few_launch(1, outputs, 4, 8, 6, 255) for outputs in (8, 16)),
    ],
    4: _NARROW_UNITS,
    8: _NARROW_UNITS,
    32: [matrix_launch(16, 2, 128, asks) for asks in (False, True)] + [matrix_launch(8, 6, 128, True)],
}
_WIDE_UNITS = [
    matrix_launch(8, unroll, registers, asks)
    for unroll, registers in ((1, 64), (2, 80), (4, 128))
    for asks in (False, True)
]
_WIDE = {
    1: [
        *(dp4a_launch(1, 2, 2, 96, asks) for asks in (False, True)),
        *(dp4a_launch(1, 2, 5, 168, asks) for asks in (False, True)),
        *(dp4a_launch(1, 4, unroll, registers, True) for unroll, registers in ((2, 64), (5, 128))),
        few_launch(1, 8, 2, 4, 5, 168),
    ],
    4: _WIDE_UNITS,
    8: _WIDE_UNITS,
    32: [matrix_launch(32, 1, 80, asks) for asks in (False, True)],
}
_FEW = [
    few_launch(1, 8, 4, 8, 10, 255),
    few_launch(2, 8, 4, 8, 5, 255),
    *(few_launch(4, 8, 4, 8, unroll, 255) for unroll in (2, 5)),
    *(matrix_launch(8, unroll, 255, True) for unroll in (5, 10)),
]
_NARROW_4_UNITS = [
    matrix_launch(8, unroll, registers, True) for unroll, registers in ((4, 128), (6, 128), (8, 255), (12, 255))
]
_NARROW_4 = {
    1: [
        dp4a_launch(1, 4, 4, 96, True),
        *(few_launch(1, 8, 2, 4, 6, registers) for registers in (168, 255)),
        few_launch(1, 16, 2, 4, 6, 255),
        few_launch(1, 8, 4, 8, 6, 255),
    ],
    4: _NARROW_4_UNITS,
    8: _NARROW_4_UNITS,
    32: [matrix_launch(16, 2, 80, True), matrix_launch(8, 6, 128, True)],
}
_WIDE_4 = {
    1: [
        dp4a_launch(1, 4, 2, 64, True),
        *(dp4a_launch(1, 2, 5, 168, asks) for asks in (False, True)),
        dp4a_launch(1, 1, 5, 168),
        dp4a_launch(1, 4, 5, 128),
    ],
    4: [
        dp4a_launch(2, 2, 2, 96, True),
        dp4a_launch(4, 1, 2, 255),
        *(matrix_launch(8, unroll, registers, True) for unroll, registers in ((1, 48), (2, 80), (5, 96))),
    ],
    8: [
        matrix_launch(8, 1, 48, True),
        matrix_launch(8, 5, 96, True),
        *(matrix_launch(8, 2, 80, asks) for asks in (False, True)),
        matrix_launch(8, 4, 128),
    ],
    32: [matrix_launch(32, 1, 80, True)],
}
_OF_ONE: dict[Chain, dict[int, list[LaunchShape]]] = {
    FEW: {
        1: [
            *(few_launch(1, 8, 4, 8, unroll, 255) for unroll in (5, 10)),
            few_launch(1, 8, 2, 4, 10, 255),
            few_launch(1, 4, 4, 4, 10, 255),
        ],
        4: _FEW,
        8: _FEW,
        32: [
            *(matrix_launch(8, unroll, registers, True) for unroll, registers in ((4, 128), (10, 255), (20, 255))),
            matrix_launch(16, 4, 255, True),
        ],
    },
    NARROW: _NARROW,
    WIDE: _WIDE,
    HEAD: _WIDE,
    NARROW_4: _NARROW_4,
    WIDE_4: _WIDE_4,
    HEAD_4: _WIDE_4,
}
# Rows of a float code lie side by side in as many times the threads; as many warps as the matrix units beside it want.
_ROUTERS = {
    1: [
        *(few_launch(1, 8, 1, 4, unroll, registers) for unroll, registers in ((32, 128), (40, 128), (80, 255))),
        few_launch(1, 16, 1, 8, 40, 128),
    ],
    2: [few_launch(2, 8, 2, 8, 32, 128), few_launch(2, 8, 2, 4, 32, 128), few_launch(1, 8, 1, 4, 40, 128)],
    4: [
        *(few_launch(4, 8, 4, 8, unroll, 128) for unroll in (16, 32)),
        few_launch(4, 4, 4, 8, 32, 128),
        few_launch(4, 16, 4, 8, 16, 128),
        few_launch(2, 8, 2, 8, 32, 128),
        few_launch(4, 8, 2, 8, 16, 128),
    ],
    8: [
        *(few_launch(8, 8, 8, 8, unroll, 128) for unroll in (16, 20)),
        *(few_launch(8, 4, 8, 8, unroll, 128) for unroll in (16, 32)),
        *(few_launch(4, 8, 4, 8, unroll, 128) for unroll in (16, 32)),
        few_launch(8, 8, 4, 8, 16, 128),
        few_launch(8, 4, 4, 8, 16, 128),
    ],
    32: [few_launch(8, 8, 8, 8, 16, 128), few_launch(8, 16, 8, 8, 8, 128), few_launch(8, 8, 4, 8, 16, 128)],
}


def candidates(chain: Chain, device: str, rows: int) -> list[Launches]:
    """Every launch worth timing, the table's first. Of the pair: routers beside the table's launch of the other."""
    if chain == ROUTER:
        layouts = ROUTER.layouts()
        beside = packed_launch(device, layouts[1], rows)
        found = [tuple(in_one_launch([router, beside], layouts)) for router in _ROUTERS[rows]]
    elif rows == 2:
        several = [launch for launch in _OF_ONE[chain][4] if launch.rows <= 2 or launch.uses_matrix_units]
        found = [(launch,) for launch in [*several, *_OF_ONE[chain][1][:2]]]
    else:
        found = [(launch,) for launch in _OF_ONE[chain][rows]]
    return list(dict.fromkeys([chain.current(device, rows), *found]))


def timed_rows(chain: Chain) -> tuple[int, ...]:
    """Row counts that a chain is timed at: each a bucket of the table."""
    return tuple(rows for rows in TIMED_ROWS if rows != 2 or chain not in (HEAD, NARROW_4, WIDE_4, HEAD_4))


def lines(names: Container[str] | None = None, rows: Container[int] | None = None) -> list[tuple[Chain, int]]:
    """Chains and rows that are timed, in this order: all, or those asked for."""
    return [
        (chain, count)
        for chain in CHAINS
        if names is None or chain.name in names
        for count in timed_rows(chain)
        if rows is None or count in rows
    ]


def kernels(device: str, of_lines: Sequence[tuple[Chain, int]]) -> list[tuple[Chain, int, Launches]]:
    """Each kernel of these lines once, with rows that launch it."""
    found: dict[object, tuple[Chain, int, Launches]] = {}
    for chain, rows in of_lines:
        for launches in candidates(chain, device, rows):
            found.setdefault((chain.kinds, launches), (chain, rows, launches))
    return list(found.values())
