"""`python -m tests.gpu.parking`: do conversations that move to main memory come back bit for bit on this GPU, and fast?

For people with an NVIDIA GPU; less than a minute, two more with `--stages`, most of it compiling. Slots of random bytes
in every kind of cells, on the card and with keys and values in main memory; then what moving one of the published shape
takes beside what the link gives; with `--stages` a tiny model's replies, conversations taking turns in one slot.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from strata.bench.synthetic_model import synthetic_config
from strata.engine.compile_share import CompileRequest
from strata.engine.parked_cells import ParkedCells
from strata.engine.parked_room import ParkedRoom
from strata.engine.precompile import precompile
from strata.experts.host_memory import Pinning
from strata.kernels.compiled import use_cache
from strata.models.device.sizes import StateSizes, state_sizes
from strata.models.device.state import DeviceState
from strata.models.families import family_of
from strata.quant.cell_codes import CellKind
from tests.engine.paged_stages import FAMILY, LEAST, model_of
from tests.engine.parked_checks import assert_equal, check_cells, check_moves, fill, settle
from tests.engine.parked_turns import check_turns
from tests.engine.stages import stage_model
from tests.gpu.tiny_models import directory

ROWS = 30_000
TIMED_ROUNDS = 3
Check = tuple[str, Callable[[], str]]


def published() -> StateSizes:
    """Of the published model."""
    config = synthetic_config(48, is_tiny=False)
    return state_sizes(family_of(config).parse_config(config))


def pinning_of(device: torch.device) -> Pinning | None:
    """None for no card."""
    return Pinning.cuda() if device.type == "cuda" else None


def cell_checks(device: torch.device) -> Sequence[Check]:
    """Every kind of the published model."""
    return [
        (f"slots of {kind.value}{', ' + str(resident) + ' cells on the card' if resident else ''}", check)
        for kind in CellKind
        for resident in (0, 2056)
        for check in [partial(_cells, kind, resident, device)]
    ]


def _cells(kind: CellKind, resident: int, device: torch.device) -> str:
    state = DeviceState.empty(published(), 3, 3072, kind, device, resident)
    size = 3 * (ParkedCells(state, ParkedRoom(0, None)).space.size(3072))
    room = ParkedRoom(size, pinning_of(device))
    assert room.notice is None, room.notice
    cells = ParkedCells(state, room)
    for rows in ([3000, 64, 1025], [1, 3072, 2999]):
        check_cells(cells, state, rows)
    assert room.free_bytes == size, "something was not given back"
    sizes = f"{cells.space.fixed:,} bytes and {cells.space.per_token:,.0f} a token"
    return f"6 conversations came back as they were, {sizes}"


def move_times(kind: CellKind, resident: int, device: torch.device, rows: int) -> str:
    """What moving a conversation there and back takes, and what of it is launching."""
    state = DeviceState.empty(published(), 2, rows, kind, device, resident)
    fill(state)
    space = ParkedCells(state, ParkedRoom(0, None)).space
    begin = time.perf_counter()
    cells = ParkedCells(state, ParkedRoom(space.size(rows), pinning_of(device)))
    made = time.perf_counter() - begin
    wanted = state.save(0, rows)
    there: list[float] = []
    back: list[float] = []
    launching: list[float] = []
    for _ in range(TIMED_ROUNDS):
        there.append(_timed(partial(cells.park, 0, 1, rows), cells, device, launching))
        back.append(_timed(partial(cells.bring, 1, 1, rows, is_whole=True), cells, device, launching))
        cells.drop(1)
    longest = _longest_part(partial(cells.park, 0, 1, rows), cells, device)
    settle(state)
    assert_equal(state.save(1, rows), wanted)
    size = space.size(rows) / 1e9
    where = ", keys and values in main memory" if resident else ""
    told = f"{kind.value:5}{where}: {rows:,} rows are {size:.3f} GB"
    speeds = "; ".join(
        f"{what} {1e3 * min(times):.1f} ms, {size / min(times):.1f} GB/s"
        for what, times in (("there", there), ("back", back))
    )
    parts = f"a part takes {1e3 * longest:.1f} ms at most, begun in {1e3 * min(launching):.2f} ms"
    return f"{told}; {speeds}; {parts}; pinned in {made:.2f} s"


def _timed(move: Callable[[], None], cells: ParkedCells, device: torch.device, launching: list[float]) -> float:
    _wait(device)
    begin = time.perf_counter()
    move()
    launching.append(time.perf_counter() - begin)
    cells.finish()
    _wait(device)
    return time.perf_counter() - begin


def _longest_part(move: Callable[[], None], cells: ParkedCells, device: torch.device) -> float:
    """Seconds of the device without a place for a window in between; the beginning does not count."""
    move()
    _wait(device)
    longest, is_moving = 0.0, True
    while is_moving:
        begin = time.perf_counter()
        is_moving = cells.moves_on()
        _wait(device)
        longest = max(longest, time.perf_counter() - begin)
    return longest


def link_speed(device: torch.device) -> str:
    """One long copy of pinned memory, both ways."""
    here = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(here, device=device)
    told = []
    for found, wanted, what in ((there, here, "there"), (here, there, "back")):
        times = []
        for _ in range(TIMED_ROUNDS):
            _wait(device)
            begin = time.perf_counter()
            wanted.copy_(found, non_blocking=True)
            _wait(device)
            times.append(time.perf_counter() - begin)
        told.append(f"{what} {here.numel() / 1e9 / min(times):.1f} GB/s")
    return f"one copy of 1 GiB: {', '.join(told)}"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compile_stages(device: torch.device, kernels: Path) -> None:
    """What the stages launch, in many processes."""
    use_cache(kernels)
    begin, processes = time.perf_counter(), max(1, (os.cpu_count() or 2) - 1)
    request = CompileRequest(directory(FAMILY), "none", 3, 0, device.index or 0, kernels, reads_chunks=True)
    for kind, resident in ((CellKind.BF16, 0), (CellKind.K8V4, LEAST)):
        precompile(replace(request, kv_kind=kind.value, kv_resident=resident), processes)
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)


def stage_checks(device: torch.device) -> Sequence[Check]:
    """A tiny model whose conversations move, through captured graphs."""
    return [
        ("stage", partial(_stage, device)),
        ("stage with keys and values in main memory", partial(_paged, device)),
        ("turns in one slot", partial(check_turns, FAMILY, device)),
    ]


def _stage(device: torch.device) -> str:
    model = stage_model(FAMILY, slots=3, device=device)
    model.slots.parked.make_room(8 << 20, 512, pinning_of(device))
    check_moves(model)
    return "windows give the logits of one that stayed"


def _paged(device: torch.device) -> str:
    model = model_of(LEAST, CellKind.K8V4, device=device)
    model.slots.parked.make_room(8 << 20, 512, pinning_of(device))
    check_moves(model, rows=100)
    return "windows give the logits of one that stayed"


def main() -> int:
    """0 if every check passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--stages", action="store_true", help="tiny models' replies, too: compiles kernels")
    parser.add_argument("--device", default="cuda", help="cpu: the checks alone, on CPU tensors")
    options = parser.parse_args()
    is_card = options.device == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if is_card else torch.device(options.device)
    checks = [*cell_checks(device), *(stage_checks(device) if options.stages else ())]
    with tempfile.TemporaryDirectory() as folder:
        if options.stages and device.type == "cuda":
            compile_stages(device, Path(folder))
        failed = sum(not _passes(what, check) for what, check in checks)
    print(f"{len(checks) - failed} checks passed, {failed} failed", flush=True)
    if not failed and device.type == "cuda":
        print(link_speed(device), flush=True)
        for kind, resident in ((CellKind.BF16, 0), (CellKind.Q4, 0), (CellKind.BF16, 2056)):
            print(move_times(kind, resident, device, ROWS), flush=True)
    return int(failed > 0)


def _passes(what: str, check: Callable[[], str]) -> bool:
    begin = time.perf_counter()
    try:
        line, is_good = check(), True
    except Exception:  # whatever it is, the other checks go on
        line, is_good = traceback.format_exc(), False
    print(f"{'ok  ' if is_good else 'FAIL'} {what}: {line} ({time.perf_counter() - begin:.1f} s)", flush=True)
    return is_good


if __name__ == "__main__":
    sys.exit(main())
