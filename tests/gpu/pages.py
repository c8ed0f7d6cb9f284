"""`python -m tests.gpu.pages`: do keys and values in main memory give the bits that they give on this GPU?

For people with an NVIDIA GPU; a minute or two, most of it compiling. What windows need is in the pool with its own
bytes, in every kind; windows and a tiny model's stages give what they give with all cells here; then what bringing
blocks takes beside what the link gives.
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

from strata.engine.compile_share import CompileRequest
from strata.engine.precompile import precompile
from strata.kernels.cell_pages import CellPages, Total, copy_cells, resolve_pages, sides
from strata.kernels.compiled import use_cache
from strata.quant.cell_codes import CellKind
from tests.engine.paged_stages import FAMILY, LEAST, Story, assert_consistent, model_of
from tests.engine.served import Served, ask
from tests.engine.stages import stage_engine
from tests.gpu.timing import seconds
from tests.gpu.tiny_models import directory
from tests.kernels.attention_cases import PUBLISHED as PUBLISHED_ATTENTION
from tests.kernels.attention_cases import random_window
from tests.kernels.page_cases import PUBLISHED, PageCase, PageShape
from tests.kernels.page_checks import check_paged
from tests.random_text import token_ids_of

WINDOWS = 12
TIMED_WINDOWS = 32  # of one graph
MISSES = (0, 64, 128, 256, 512)  # of a window's 512 blocks
STAGES = ((CellKind.BF16, LEAST), (CellKind.K8V4, 60))
Check = tuple[str, Callable[[], str]]


def kernel_checks(device: torch.device) -> Sequence[Check]:
    """Windows that drift over a pool of the published shape, and a copy between slots."""
    shapes = [replace(PUBLISHED, kind=kind, blocks=2048) for kind in CellKind]
    tight = replace(PUBLISHED, blocks=2048, rows=8, slots=3, places=8 * 514)
    return [
        *(
            (f"pool of {shape.kind.value}, {shape.rows} rows", partial(_drift, shape, device))
            for shape in (*shapes, tight)
        ),
        ("copy in main memory", partial(_copy, device)),
    ]


def _drift(shape: PageShape, device: torch.device) -> str:
    case = PageCase.make(shape, device)
    for _ in range(WINDOWS):
        rows, choice, needed = case.window()
        missing, totals = case.missing(needed), case.pages.totals.to("cpu", copy=True)
        resolve_pages(rows, choice, case.cells, case.pages, case.work)
        case.check(needed, missing, totals)
    asked, brought = case.pages.totals.tolist()
    return f"{WINDOWS} windows asked for {asked:,} blocks and brought {brought:,}, each with its bytes"


def _copy(device: torch.device) -> str:
    found = torch.randint(256, (3, 1 << 20), dtype=torch.uint8).pin_memory()
    wanted = torch.zeros_like(found).pin_memory()
    copy_cells(list(found[:2]), list(wanted[:2]), device)
    torch.cuda.synchronize(device)
    assert torch.equal(found[:2], wanted[:2]) and not bool(wanted[2].any())
    return "the same bytes, and none beside them"


def window_times(device: torch.device, kind: CellKind) -> list[str]:
    """What `resolve_pages` takes for one row of the published shape, by how many of its blocks are missing."""
    lines = []
    for misses in MISSES:
        shape = replace(PUBLISHED, slots=1, rows=1, places=1024, kind=kind)
        case = PageCase.make(shape, device)
        calls = [_sliding(case, number * misses) for number in range(TIMED_WINDOWS)]
        for call in calls:
            call()
        before = int(case.pages.totals[Total.BROUGHT])
        for call in calls:
            call()
        brought = (int(case.pages.totals[Total.BROUGHT]) - before) / TIMED_WINDOWS
        taken, _ = seconds(calls)
        size = brought * _block_bytes(case.pages)
        told = f"{kind.value:5} {brought:6.1f} blocks of 512 missing"
        lines.append(f"{told}: {1e6 * taken:6.1f} us, {size / taken / 1e9:5.1f} GB/s")
    return lines


def _sliding(case: PageCase, first: int) -> Callable[[], None]:
    """One row that chooses the blocks from `first` on."""
    shape, device = case.shape, case.pages.table.device
    rows, choice, _ = case.window()
    chosen = (torch.arange(first, first + shape.top, device=device) % shape.blocks).int()[None]
    rows.slots.zero_()
    rows.positions.fill_(shape.blocks * shape.ratio - 1)
    choice = replace(choice, chosen=chosen, counts=torch.full((1,), shape.top, dtype=torch.int32, device=device))
    return partial(resolve_pages, rows, choice, case.cells, case.pages, case.work)


def _block_bytes(pages: CellPages) -> int:
    return sum(part.nbytes for part in sides(pages)) // pages.places


def stage_checks(device: torch.device) -> Sequence[Check]:
    """A tiny model through captured graphs and in chunks, and a window's attention of the published shape."""
    kinds = [
        (f"windows of {kind.value}, {rows} rows", partial(_windows, kind, rows, device))
        for kind, rows in ((CellKind.BF16, 1), (CellKind.BF16, 8), (CellKind.INT8, 1), (CellKind.K8V4, 2))
    ]
    stages = [
        (f"stage of {kind.value}, {resident} cells a slot", partial(_story, kind, resident, device))
        for kind, resident in STAGES
    ]
    return [*kinds, *stages, ("replies", partial(_replies, device))]


def _windows(kind: CellKind, rows: int, device: torch.device) -> str:
    window = random_window(
        PUBLISHED_ATTENTION, [(0, 2040, rows), (1, 9000, 1)], 9216, half=32, kind=kind, device=device
    )
    brought = check_paged(window, (rows + 1) * 514)
    return f"3 windows have the bits of cells on the device, {brought:,} blocks were brought"


def _story(kind: CellKind, resident: int, device: torch.device) -> str:
    found, wanted = (Story(model_of(cells, kind, device=device)) for cells in (resident, 0))
    for one, other in zip(found.run(), wanted.run(), strict=True):
        assert torch.equal(one, other), f"{int((one != other).sum())} of {one.numel()} values differ"
    assert_consistent(found.model)
    counted = found.model.pages_counted
    return f"the same logits and states; {counted['brought']} of {counted['asked']} blocks were brought"


def _replies(device: torch.device) -> str:
    told = []
    for resident in (LEAST + 10, 0):
        model = model_of(resident, slots=2, device=device)
        served, begin = Served(stage_engine(model, is_ahead=True), 2), token_ids_of(140, 1)
        served.submit(0, ask([*begin, 3, 4], 60))
        served.submit(1, ask([*begin, 9, 2, 7], 50, temperature=1.0, seed=4))
        served.finish()
        turn = served.ask(ask([*begin, 3, 4, *served.replies[0][:20], 8], 12))
        told.append([served.replies[0], served.replies[1], turn])
    assert told[0] == told[1], f"{told[0]} instead of {told[1]}"
    return f"the same {sum(map(len, told[0]))} tokens"


def compile_stages(device: torch.device, kernels: Path) -> None:
    """What the stages launch, in many processes."""
    use_cache(kernels)
    begin, processes = time.perf_counter(), max(1, (os.cpu_count() or 2) - 1)
    for kind, resident in ((CellKind.BF16, 0), *STAGES):
        request = CompileRequest(directory(FAMILY), "none", 3, 0, device.index, kernels, reads_chunks=True)
        precompile(replace(request, kv_kind=kind.value, kv_resident=resident), processes)
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)


def main() -> int:
    """0 if every check passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--kernels", type=Path, help="folder of compiled kernels; not given: one that is deleted")
    parser.add_argument("--no-stages", action="store_true", help="kernels alone")
    options = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    with tempfile.TemporaryDirectory() as folder:
        if not options.no_stages:
            compile_stages(device, options.kernels or Path(folder))
        checks = [*kernel_checks(device), *(() if options.no_stages else stage_checks(device))]
        failed = sum(not _passes(what, check) for what, check in checks)
        print(f"{len(checks) - failed} checks passed, {failed} failed", flush=True)
        for kind in () if failed else (CellKind.BF16, CellKind.INT8):
            print("\n".join(window_times(device, kind)), flush=True)
    return int(failed > 0)


def _passes(what: str, check: Callable[[], str]) -> bool:
    is_good, line = _tried(check)
    print(f"{'ok  ' if is_good else 'FAIL'} {what}: {line}", flush=True)
    return is_good


def _tried(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except AssertionError as found:
        return False, str(found)
    except Exception:  # whatever it is, the other checks go on
        return False, traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
