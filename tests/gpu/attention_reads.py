"""`python -m tests.gpu.attention_reads`: is the attention of reads right on this GPU, and how fast is it?

For people with an NVIDIA GPU; two minutes. Speeds of a layer of the published model come only if every check holds.
Knows what is launched; knows no expected value.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch

from strata.kernels.attention_read import AttentionReadWork, read_attend, read_choose
from strata.kernels.attention_read.arguments import dense_rows
from strata.kernels.attention_read.reference import multiplied
from strata.kernels.attention_rows import AttentionRowsShape, attention_prepare
from strata.quant.cell_codes import CellKind
from tests.kernels.attention_cases import PUBLISHED, random_window
from tests.kernels.attention_read_checks import (
    HALF,
    SELECTIONS,
    UNTOUCHED,
    Road,
    assert_selected,
    check_choices,
    check_cuts,
    check_needle,
    check_values,
    greatest_scores,
    read_case,
    scores_to_select,
)

ROAD = Road(attention_prepare, read_choose, read_attend)
DENSE = (AttentionRowsShape(16, 2, 256, has_output_gate=True), AttentionRowsShape(32, 4, 128))
ROWS = 8192
BEFORE = (0, 32_768, 131_072, 253_952)
TRIES = 5


def check_cut_reads(shape: AttentionRowsShape, position: int, ends: list[int], kind: CellKind = CellKind.F32) -> None:
    """A read that ends at the last of `ends` has the bits of its pieces; every 37th row is float64's."""
    rows = ends[-1]
    case = read_case(shape, position, rows, -(-(position + rows) // 1024) * 1024, kind, device="cuda")
    found = check_cuts(ROAD, case, position, ends)
    some = list(range(0, rows, 37))
    error, floor = check_values(found, case, position, some)
    others = 0 if shape.indexer is None else check_choices(found, position, shape, some)
    print(f"  error {error:.2e}, rounded cells alone {floor:.2e}; of {len(some)} rows {others} choose otherwise")


def check_decoded(kind: CellKind) -> None:
    """Cells as matrix units multiply them are the twin's, bit for bit, up to the read's last one."""
    from strata.kernels.attention_read.triton import multiplied_cells

    for shape in (PUBLISHED, *DENSE, AttentionRowsShape(9, 3, 64)):
        cells = random_window(shape, [(1, 3000, 1)], 4096, half=8, kind=kind, device="cuda").cells
        work = AttentionReadWork.empty(1, shape, 4096, kind, "cuda")
        found = multiplied_cells(cells, 1, 3001, work)
        for part, code, side in zip(found, (kind.keys, kind.values), (cells.keys, cells.values), strict=True):
            wanted = multiplied(code, side[1, :3001], shape.head_dim)
            assert torch.equal(part[:3001].view(torch.int16), wanted.view(torch.int16)), f"{kind}, {shape}"
            assert kind is CellKind.BF16 or not part[3001:].any(), "cells beyond the read were written"


def check_selection(values: str, blocks: int) -> None:
    """64 rows of up to so many blocks choose the best."""
    from strata.kernels.attention_read.triton import launch_of, select_rows

    rows, position = 64, 4 * blocks - 64
    work = AttentionReadWork.empty(rows, PUBLISHED, 4 * blocks, CellKind.BF16, "cuda")
    assert work.choice is not None
    scores, chosen = work.choice.scores, work.choice.chosen.fill_(UNTOUCHED)
    complete = [(position + row + 1) // 4 for row in range(rows)]
    scores.copy_(scores_to_select(values, rows, scores.shape[1], "cuda"))
    work.choice.greatest.copy_(greatest_scores(scores, complete))
    select_rows(0, rows, position, PUBLISHED, work, launch_of(scores.device, PUBLISHED).select)
    assert_selected(values, scores, chosen, complete)


def checks() -> Iterator[partial[None]]:
    """All that must hold."""
    yield partial(check_cut_reads, PUBLISHED, 0, [64, 192, 1024, 2048, 2112, 2400])
    yield partial(check_cut_reads, PUBLISHED, 40_003, [61, 317, 381, 1000])
    yield partial(check_cut_reads, PUBLISHED, 1990, [58, 122, 130])
    for kind in CellKind:
        yield partial(check_decoded, kind)
        yield partial(check_cut_reads, PUBLISHED, 3000, [8, 72, 200], kind)
    for shape in DENSE:
        yield partial(check_cut_reads, shape, 1000, [24, 88, 600, 700])
    for blocks in (1024, 6000, 20_000, 65_536):
        for values in SELECTIONS:
            yield partial(check_selection, values, blocks)
    for context in (8192, 32_768, 131_072, 262_144):
        for hidden in (3, context // 3 // 4 * 4 + 3, context - 397):
            yield partial(check_needle, ROAD, PUBLISHED, context, 256, hidden, "cuda")


def milliseconds(call: Callable[[], None]) -> float:
    """The median of some calls."""
    call()
    found = []
    for _ in range(TRIES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return median(found)


def time_layer(shape: AttentionRowsShape, before: int, kind: CellKind) -> None:
    """A layer's ops for ROWS rows behind so many; random queries, whose neighbours hardly share a block."""
    case = random_window(shape, [(0, before, ROWS)], before + ROWS, half=32, kind=kind, device="cuda")
    work = AttentionReadWork.empty(ROWS, shape, before + ROWS, kind, "cuda")
    out = torch.empty(ROWS, shape.query_width, dtype=HALF, device="cuda")
    place = (before, 0, case.cells, shape, work)
    calls = {
        "prepare": partial(attention_prepare, case.projected, case.rows, case.rotation, case.cells, case.layer, work),
        "choose": partial(read_choose, *place),
        "attend": partial(read_attend, case.projected, *place, out),
    }
    if shape.indexer is None:
        del calls["choose"]
    times = {name: milliseconds(call) for name, call in calls.items()}
    told = ", ".join(f"{name} {time:.2f}" for name, time in times.items())
    dense = dense_rows(ROWS, before, shape)
    print(
        f"{kind}, {shape.query_heads} heads of {shape.head_dim}, {ROWS} rows behind {before}, {dense} of them dense: "
        f"{told}; together {sum(times.values()):.2f} ms; work {work.bytes_used() / 2**20:.0f} MiB",
        flush=True,
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(torch.cuda.get_device_name(), flush=True)
    for check in checks():
        told = [part for part in check.args if isinstance(part, int | str | list)]
        print(check.func.__name__, *told, flush=True)
        check()
        torch.cuda.empty_cache()
    print("all checks passed", flush=True)
    for before in BEFORE:
        time_layer(PUBLISHED, before, CellKind.BF16)
    for kind in CellKind:
        time_layer(PUBLISHED, BEFORE[2], kind)
    for shape in DENSE:
        time_layer(shape, BEFORE[1], CellKind.BF16)


if __name__ == "__main__":
    main()
