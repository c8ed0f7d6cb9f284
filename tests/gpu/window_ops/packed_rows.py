"""Several packed matrices times the same rows in one launch, and silu(gate) * up, on a GPU: bits, then times."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from strata.kernels.launch_shapes import LaunchShape, dp4a_launch, few_launch, matrix_launch
from strata.kernels.packed_rows import multiply_into, room_for
from tests.gpu.weights import KIND, random_dense
from tests.kernels.joined_cases import JoinedCase, check_hidden, filled

HIDDEN = 2560
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PAIRS = {  # name: kinds and outputs of two matrices of the published model
    "router f32, shared q8_0": (("f32", "q8_0"), (512, 1280)),
    "router bf16, shared q8_0": (("bf16", "q8_0"), (512, 1280)),
    "qkv q4_0, index q8_0": (("q4_0", "q8_0"), (13312, 640)),
    "in q8_0, gates f32": (("q8_0", "f32"), (16384, 96)),
}
FORCED = (
    (dp4a_launch(1, 4, 8, 128), dp4a_launch(1, 4, 4, 128)),
    (dp4a_launch(1, 4, 16, 128), dp4a_launch(1, 4, 4, 128)),
    (dp4a_launch(1, 8, 16, 128), dp4a_launch(1, 8, 2, 128)),
    (dp4a_launch(1, 8, 32, 128), dp4a_launch(1, 8, 2, 128)),
    (dp4a_launch(1, 2, 32, 255), dp4a_launch(1, 2, 2, 255)),
)
UNITS = matrix_launch(8, 4, 128)
SIDE_BY_SIDE = (  # a router whose rows lie side by side, beside the matrix units
    few_launch(8, 8, 8, 8, 16, 128),
    few_launch(8, 4, 8, 8, 32, 128),
    few_launch(8, 8, 4, 8, 16, 128),
    few_launch(4, 8, 4, 8, 32, 128),
    few_launch(2, 8, 2, 8, 32, 128),
)
CACHE_BYTES = 128 << 20  # of different weights in one timed call


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Tiny sizes at every bucket, published ones at some, forced launches of both units, rows of gate and up."""
    for rows in ROWS:
        for kinds in (("f32", "q8_0"), ("q4_k", "q6_k"), ("mxfp4", "bf16")):
            case = JoinedCase(kinds, (40, 21), 256, rows)
            yield str(case), partial(case.check, device)
    for rows in (1, 3, 8, 32):
        for kinds, outputs in (PAIRS["router f32, shared q8_0"], (("q4_0", "q8_0"), (1536, 640))):
            case = JoinedCase(kinds, outputs, HIDDEN, rows)
            yield str(case), partial(case.check, device)
    units = (dp4a_launch(4, 8, 2), matrix_launch(8, 2))
    for kinds, rows, launches in (
        (("bf16", "q8_0"), 5, units),
        (("q4_0", "q2_0", "f16"), 4, None),
        (("f32", "q8_0"), 1, FORCED[1]),
    ):
        case = JoinedCase(kinds, (21, 40, 16)[: len(kinds)], 640, rows, launches)
        yield str(case), partial(case.check, device)
    for rows in (1, 3, 8, 12):
        for router in SIDE_BY_SIDE:
            case = JoinedCase(("f32", "q8_0"), (512, 1280), HIDDEN, rows, (router, UNITS))
            yield str(case), partial(case.check, device)
    for kinds, columns in ((("bf16", "q4_0"), 640), (("fp8", "q6_k"), 512), (("f16", "mxfp4"), 640)):
        case = JoinedCase(kinds, (21, 40), columns, 7, (SIDE_BY_SIDE[0], UNITS))
        yield str(case), partial(case.check, device)
    case = JoinedCase(("q2_0", "q4_k"), (21, 40), 768, 11, (UNITS, UNITS))
    yield str(case), partial(case.check, device)
    for kind, width, rows in (("q8_0", 640, 32), ("q4_0", 6144, 1), ("bf16", 45, 3)):
        yield f"hidden {kind} {width} x {rows}", partial(check_hidden, kind, width, rows, device)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Pairs of the published model at 1, 4, 8 and 32 rows by the table, then the router's pair by other launches."""
    for name, (kinds, outputs) in PAIRS.items():
        for rows in (1, 4, 8, 32):
            yield _speed(f"{name}, {rows} rows", kinds, outputs, rows, device, None)
    kinds, outputs = PAIRS["router f32, shared q8_0"]
    for launches in FORCED:
        described = ", ".join(f"w{each.warps} u{each.unroll} {each.registers}" for each in launches)
        yield _speed(f"router f32, shared q8_0, 1 row: {described}", kinds, outputs, 1, device, launches)


def _speed(
    name: str,
    kinds: Sequence[str],
    outputs: Sequence[int],
    rows: int,
    device: torch.device,
    launches: Sequence[LaunchShape] | None,
) -> tuple[str, Callable[[], None], int]:
    from strata.kernels.packed_rows import joined

    layouts = [KIND[kind].layout(count, HIDDEN) for kind, count in zip(kinds, outputs, strict=True)]
    size = sum(layout.total_bytes for layout in layouts)
    copies = [[random_dense(layout) for layout in layouts] for _ in range(CACHE_BYTES // size + 1)]
    x = filled(torch.randn(rows, HIDDEN, device=device), room_for(layouts, rows, device))
    out = torch.empty(rows, sum(outputs), device=device)

    def call() -> None:
        for matrices in copies:
            if launches is None:
                multiply_into(matrices, x, out)
            else:
                joined.multiply_into(matrices, x, out, launches)

    return name, call, size * len(copies)
