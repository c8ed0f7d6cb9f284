"""The delta net of reads on a GPU: held against the windows' rule in float64 and against its own cuts, and timed."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from strata.kernels.delta_read import DeltaReadWork, delta_read
from strata.kernels.delta_rows import DeltaRowsShape
from tests.kernels.delta_cases import PUBLISHED, TINY
from tests.kernels.delta_read_checks import (
    LENGTHS,
    POSITIONS,
    SIGMOID,
    SLOT,
    check_cuts,
    grid_cuts,
    read_case,
    relative_error,
    row_by_row,
)

SHAPES = {"published": PUBLISHED, "tiny": TINY, "sigmoid": SIGMOID}
LONG_ROWS, PASS_ROWS = 8192, 2048


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Names and checks; a check raises AssertionError."""
    for name, shape in SHAPES.items():
        for rows in LENGTHS:
            yield f"delta_read {name}, {rows} rows", partial(check_rows, device, shape, rows)
    yield "delta_read published, long", partial(check_long, device)


def check_rows(device: torch.device, shape: DeltaRowsShape, rows: int) -> None:
    """From every start: the rule's values to the bfloat16 that rows are rounded to, and no bit by the cuts."""
    case = read_case(shape, rows, device)
    wanted, delta, tail = row_by_row(case)
    for position in POSITIONS:
        found = check_cuts(delta_read, case, position, grid_cuts(position, rows), 64)
        rounding = relative_error(wanted.bfloat16(), wanted)
        assert relative_error(found.out, wanted) < 1.1 * rounding, f"rows from {position} are off"
        assert relative_error(found.state.delta[SLOT], delta) < 3e-5, f"the state from {position} is off"
        assert torch.equal(found.state.conv_tail[SLOT].double(), tail), f"the tail from {position} is another"


def check_long(device: torch.device) -> None:
    """A whole chunk of a prompt in one pass and in passes, in pieces and at once."""
    case = read_case(PUBLISHED, LONG_ROWS, device)
    for position, ends in ((0, [LONG_ROWS]), (100, [28, 28 + LONG_ROWS // 2, LONG_ROWS]), (64, [64, 192, LONG_ROWS])):
        check_cuts(delta_read, case, position, ends, PASS_ROWS)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Reads of the published layer, and the bytes of its projected rows and results."""
    for rows in (LONG_ROWS, PASS_ROWS, 64):
        case = read_case(PUBLISHED, rows, device)
        work = DeltaReadWork.empty(min(rows, PASS_ROWS), PUBLISHED, device)
        out = torch.empty(rows, PUBLISHED.value_width, dtype=torch.bfloat16, device=device)
        of_layer = (case.states.layer(0), case.vectors.layer(0), PUBLISHED, work, out)
        size = rows * (PUBLISHED.projected_width * 4 + PUBLISHED.value_width * 2)
        yield f"{rows} rows", partial(delta_read, case.projected[0], 0, SLOT, *of_layer), size
