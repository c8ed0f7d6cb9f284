"""Routing on a GPU: ids and the list of work exact, weights within rounding; its time. Knows no expert's bytes."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from strata.kernels.router import Routes, SharedGate, reference, route_rows
from tests.kernels.router_cases import PUBLISHED, SMALL
from tests.kernels.window_cases import window_of

EXPERTS, RANKS, HIDDEN = 512, 10, 2560
WORK = ("seats", "starts", "places", "rows")


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Every case of the interpreter, and the published sizes with 1 to 32 rows."""
    for case in (*SMALL, *PUBLISHED):
        yield str(case), partial(case.check, device)
    yield "a row alone and among 31 others", partial(_check_company, device)
    for rows in (2, 8, 32):
        yield f"route {rows} rows: 200 turns with the same marks", partial(_check_turns, device, rows)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Published sizes; what is read is small, the time is that of the choices."""
    for rows in (1, 2, 8, 32):
        logits = torch.randn(rows, EXPERTS + 1280, device=device)[:, :EXPERTS]
        shared = SharedGate(torch.randn(rows, HIDDEN, device=device), torch.randn(HIDDEN, device=device))
        routes, window = Routes.empty(rows, RANKS, device, True), window_of([(0, rows)], rows, device=device)
        call = partial(route_rows, logits, window, True, routes, shared)
        yield f"route {rows} rows of {EXPERTS}", call, 4 * (rows * (EXPERTS + HIDDEN) + HIDDEN)


def _check_company(device: torch.device) -> None:
    logits = torch.randn(32, EXPERTS, device=device)
    x, gate = torch.randn(32, HIDDEN, device=device), torch.randn(HIDDEN, device=device) * 0.02
    together, alone = (Routes.empty(rows, RANKS, device, True) for rows in (32, 1))
    route_rows(logits, window_of([(0, 32)], 32, device=device), True, together, SharedGate(x, gate))
    for row in range(32):
        of_row = SharedGate(x[row : row + 1], gate)
        route_rows(logits[row : row + 1], window_of([(1, 1)], 1, device=device), True, alone, of_row)
        for name in ("ids", "weights", "shared_weights"):
            mine, theirs = getattr(alone, name)[0], getattr(together, name)[row]
            assert torch.equal(mine.view(torch.int32), theirs.view(torch.int32)), f"row {row}: {name} depend on company"


def _check_turns(device: torch.device, rows: int) -> None:
    """The last program of a launch leaves the marks as the next one wants them, whichever it is."""
    found, wanted = (Routes.empty(rows, RANKS, device, False) for _ in range(2))
    turns = []
    for turn in range(200):
        logits = torch.randn(rows, EXPERTS, device=device)
        window = window_of([(0, rows - turn % 2)], rows, device=device)
        route_rows(logits, window, True, found)
        turns.append((logits, window, {name: getattr(found.work, name).clone() for name in WORK}))
    for turn, (logits, window, work) in enumerate(turns):
        reference.route_rows(logits, window, True, wanted, None)
        for name in WORK:
            assert torch.equal(work[name], getattr(wanted.work, name)), f"turn {turn}: other {name} than the twin's"
