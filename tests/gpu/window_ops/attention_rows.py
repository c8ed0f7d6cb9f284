"""The attention of a window's rows on a GPU: checks against the twin, and launches to time. Knows no other op.

Shapes are those of published models and tiny ones; `cases` raise AssertionError, `speeds` name what must be moved.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch

from strata.kernels.attention_rows import (
    AttentionCells,
    AttentionRowsShape,
    attention_attend,
    attention_choose,
    attention_prepare,
)
from strata.kernels.attention_rows.parts import LEAST_PART, MOST_PARTS
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.cell_codes import CellCode, CellKind, CellRows
from tests.kernels import attention_checks as checks
from tests.kernels import stored_cell_checks
from tests.kernels.attention_cases import (
    GATED,
    INDEXED,
    PLAIN,
    PUBLISHED,
    AttentionWindow,
    Segment,
    cell_tensors,
    other_cells,
    random_window,
    window_rows,
)

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXT = 262_144
LEAST_LAUNCHES = 16  # of an op in what is timed
BF16 = CellKind.BF16
KINDS = (CellKind.BF16, CellKind.INT8, CellKind.K8V4, CellKind.Q4)  # every other case is of f32
SHAPES = {
    "tiny plain": PLAIN,
    "tiny gated": GATED,
    "tiny indexed": INDEXED,
    "qwen4_exp": PUBLISHED,
    "qwen3_next": AttentionRowsShape(query_heads=16, kv_heads=2, head_dim=256, has_output_gate=True),
    "qwen3_moe": AttentionRowsShape(query_heads=32, kv_heads=4, head_dim=128),
    "llama": AttentionRowsShape(query_heads=9, kv_heads=3, head_dim=64),
}


def segments_of(bucket: int, dense_positions: int) -> tuple[list[Segment], int]:
    """Slots of five rows and a shorter one, at the start, around the first gathered row, far behind; unused rows."""
    starts = (dense_positions - 2, 3 * dense_positions, 0, 2 * dense_positions + 1, 1, dense_positions + 7, 5)
    used = bucket if bucket < 4 else bucket - bucket // 8
    counts = [min(5, used - first) for first in range(0, used, 5)]
    return [(number, starts[number], count) for number, count in enumerate(counts)], bucket - used


def window_of(name: str, bucket: int, device: torch.device, kind: CellKind = CellKind.F32) -> AttentionWindow:
    """A window of a shape in `SHAPES`."""
    shape = SHAPES[name]
    reach = 300 if shape.indexer is None else shape.indexer.dense_positions
    segments, unused = segments_of(bucket, reach)
    cells = -(-(3 * reach + 16) // 512) * 512
    half = 4 if name.startswith("tiny") else 32
    is_normed = name != "llama"
    return random_window(
        shape, segments, cells, half=half, unused=unused, is_normed=is_normed, kind=kind, device=device
    )


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Name and check, each with a window of its own."""
    for name in SHAPES:
        for bucket in BUCKETS if name in ("qwen4_exp", "tiny indexed") else (1, 6, 32):
            yield f"{name}, {bucket} rows: prepare", partial(_on_window, checks.check_prepared, name, bucket, device)
            yield f"{name}, {bucket} rows: attend", partial(_on_window, checks.check_attended, name, bucket, device)
        yield f"{name}: later launches", partial(_on_window, checks.check_again, name, 32, device)
        yield f"{name}: alone as in company", partial(_on_window, checks.check_company, name, 32, device)
        yield f"{name}: quantized rows", partial(_on_window, checks.check_quantized, name, 12, device)
    for code in CellCode:
        yield f"heads stored as {code.value}", partial(stored_cell_checks.check_code, code, device)
    yield "heads rotated", partial(stored_cell_checks.check_rotation, device)
    yield "levels", partial(stored_cell_checks.check_levels, device)
    yield "float32 in thirds", partial(stored_cell_checks.check_thirds, device)
    for kind in KINDS:
        yield from _cases_of_kind(kind, device)
    for values in checks.SELECTIONS:
        for blocks, top_blocks in ((600, 512), (7500, 512), (65_536, 512), (200, 16)):
            check = partial(checks.check_selection, values, blocks, top_blocks, 8192, device)
            yield f"select {top_blocks} of {blocks}, {values}", check
    for name, position in (("qwen4_exp", 30_000), ("qwen4_exp", CONTEXT - 1), ("qwen3_next", CONTEXT - 1)):
        yield f"{name} at {position}", partial(_check_long, SHAPES[name], position, device)
    for name in ("qwen4_exp", "qwen3_moe"):
        yield f"{name}: bounds of parts", partial(_check_bounds, SHAPES[name], checks.check_attended, device)
        yield (
            f"{name}: bounds of parts, later launches",
            partial(_check_bounds, SHAPES[name], checks.check_again, device),
        )
    yield "replay at other positions", partial(_check_replay, device)
    yield "slots behind 2^31 elements", partial(_check_far_slot, device)


def _cases_of_kind(kind: CellKind, device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Heads of four groups, of one and of less; both launches of a bucket."""
    for name in ("qwen4_exp", "qwen3_moe", "llama", "tiny indexed"):
        for bucket in (1, 12):
            for check in (checks.check_prepared, checks.check_attended):
                case = partial(_on_window, check, name, bucket, device, kind)
                yield f"{name}, {kind}, {bucket} rows: {check.__name__}", case
        yield f"{name}, {kind}: alone as in company", partial(_on_window, checks.check_company, name, 12, device, kind)
        yield f"{name}, {kind}: quantized rows", partial(_on_window, checks.check_quantized, name, 12, device, kind)
    yield f"qwen4_exp, {kind}: later launches", partial(_on_window, checks.check_again, "qwen4_exp", 32, device, kind)
    for name in ("qwen4_exp", "qwen3_next"):
        yield f"{name}, {kind}, at 30,000", partial(_check_long, SHAPES[name], 30_000, device, kind)


def _on_window(
    check: Callable[[AttentionWindow], None],
    name: str,
    bucket: int,
    device: torch.device,
    kind: CellKind = CellKind.F32,
) -> None:
    check(window_of(name, bucket, device, kind))


def _check_long(shape: AttentionRowsShape, position: int, device: torch.device, kind: CellKind = CellKind.F32) -> None:
    cells, segments = -(-(position + 1) // 512) * 512, [(0, position - 1, 2), (1, 3000, 1)]
    checks.check_attended(random_window(shape, segments, cells, half=32, kind=kind, device=device))


def _check_bounds(shape: AttentionRowsShape, check: Callable[[AttentionWindow], None], device: torch.device) -> None:
    """Rows in slots of their own that see one cell less than some parts, as many, one more; some choose, of whole tiles
    of blocks or of a block more."""
    least, first = LEAST_PART, 0 if shape.indexer is None else shape.indexer.dense_positions
    seen = [1, *(cuts * least + more for cuts in (1, 2, 32, 64, MOST_PARTS) for more in (-1, 0, 1))]
    seen += [first + 1, 4096, 4099, 4100, 8191, 8192, 8196, 12_288, 12_800]
    segments = [(slot, count - 1, 1) for slot, count in enumerate(seen)]
    check(random_window(shape, segments, max(seen), half=min(32, shape.head_dim // 4), device=device))


def launch_all(window: AttentionWindow, out: RowsOut) -> None:
    """The four launches of a layer."""
    shape = window.layer.shape
    attention_prepare(window.projected, window.rows, window.rotation, window.cells, window.layer, window.work)
    attention_choose(window.rows, window.cells, shape, window.work)
    attention_attend(window.projected, window.rows, window.cells, shape, window.work, out)


def _check_replay(device: torch.device) -> None:
    """One captured graph gives the bits of fresh launches at positions that it was not captured at."""
    window = window_of("qwen4_exp", 4, device)
    out = torch.zeros(4, PUBLISHED.query_width, device=device)
    launch_all(window, RowsOut(out, None))
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_all(window, RowsOut(out, None))
    every_segment: Sequence[Sequence[Segment]] = ([(0, 5000, 4)], [(0, 0, 1)], [(0, 2047, 4)], [(0, 11, 2)])
    for segments in every_segment:
        rows = window_rows(segments, 4 - segments[0][2], device)
        for name in ("slots", "positions", "first_rows"):
            getattr(window.rows, name).copy_(getattr(rows, name))
        fresh = window.with_own_state()
        graph.replay()
        wanted = torch.empty_like(out)
        launch_all(fresh, RowsOut(wanted, None))
        assert torch.equal(out, wanted), f"another result at {segments}"
        of_fresh = cell_tensors(fresh.cells)
        for name, part in cell_tensors(window.cells).items():
            assert torch.equal(part, of_fresh[name]), f"other {name} at {segments}"


def _check_far_slot(device: torch.device) -> None:
    """Slot 17 of 18 begins behind element 2^31 of the keys; it gives the bits of the same cells in slot 0."""
    near = random_window(PUBLISHED, [(0, 30_000, 2)], CONTEXT, half=32, device=device)
    parts = {name: part.new_zeros(18, *part.shape[1:]) for name, part in cell_tensors(near.cells).items()}
    for name, part in cell_tensors(near.cells).items():
        parts[name][17].copy_(part[0])
    sides = (CellRows(parts["keys.codes"]), CellRows(parts["values.codes"]))
    cells = AttentionCells(near.cells.kind, *sides, parts["raw"], parts["pooled"])
    far = replace(near, rows=window_rows([(17, 30_000, 2)], 0, device), cells=cells)
    results = [torch.empty(2, PUBLISHED.query_width, device=device) for _ in range(2)]
    for window, out in zip((near, far), results, strict=True):
        launch_all(window, RowsOut(out, None))
    assert torch.equal(*results)
    for name, part in cell_tensors(near.cells).items():
        assert torch.equal(parts[name][17], part[0]), f"other {name}"


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Name, launches, bytes of cells. Rows have slots of their own; few rows take several layers, so that cells come
    from memory and not from the cache: the time is that of all of them, as the bytes are."""
    for name, rows, layers, position, kind in (
        ("qwen4_exp", 1, 24, 30_000, BF16), ("qwen4_exp", 4, 8, 30_000, BF16), ("qwen4_exp", 32, 1, 30_000, BF16),
        ("qwen4_exp", 1, 24, 1500, BF16), ("qwen4_exp", 8, 8, 1024, BF16), ("qwen4_exp", 1, 2, CONTEXT - 1, BF16),
        ("qwen3_next", 1, 8, 30_000, BF16), ("qwen3_next", 1, 1, CONTEXT - 1, BF16), ("qwen3_moe", 1, 24, 4000, BF16),
        *(("qwen4_exp", 8, 4, 30_000, kind) for kind in CellKind),
    ):  # fmt: skip
        windows = _layers_of(SHAPES[name], rows, layers, position, kind, device)
        yield from _speeds_of(f"{name}, {kind}, {rows} rows at {position}, {layers} layers", windows, position)


def _layers_of(
    shape: AttentionRowsShape, rows: int, layers: int, position: int, kind: CellKind, device: torch.device
) -> list[AttentionWindow]:
    """Windows that share all but their cells."""
    cells = -(-(position + 1) // 512) * 512
    segments = [(slot, position, 1) for slot in range(rows)]
    first = random_window(shape, segments, cells, half=32, kind=kind, device=device)
    others = (other_cells(first.cells, shape.head_dim) for _ in range(layers - 1))
    return [first, *(replace(first, cells=cells) for cells in others)]


def _speeds_of(
    name: str, windows: Sequence[AttentionWindow], position: int
) -> Iterable[tuple[str, Callable[[], None], int]]:
    window, shape, indexer = windows[0], windows[0].layer.shape, windows[0].layer.shape.indexer
    rounds = -(-LEAST_LAUNCHES // len(windows))  # a graph of few launches would time its own start
    rows, layers = window.rows.count, len(windows) * rounds
    out = RowsOut(torch.empty(rows, shape.query_width, device=window.work.query.device), None)
    seen = position + 1

    def all_of(op: Callable[[AttentionWindow], None]) -> Callable[[], None]:
        def launch() -> None:
            for _ in range(rounds):
                for one in windows:
                    op(one)

        return launch

    def prepare(one: AttentionWindow) -> None:
        attention_prepare(one.projected, one.rows, one.rotation, one.cells, one.layer, one.work)

    def choose(one: AttentionWindow) -> None:
        attention_choose(one.rows, one.cells, shape, one.work)

    def attend(one: AttentionWindow) -> None:
        attention_attend(one.projected, one.rows, one.cells, shape, one.work, out)

    cell_bytes = shape.kv_heads * window.cells.kind.head_bytes(shape.head_dim)
    columns = shape.projected_width + shape.query_width
    name = f"{name} x {rounds}"
    yield f"{name}: prepare", all_of(prepare), layers * rows * (columns * 4 + cell_bytes)
    prepare(window)
    if indexer is not None:
        yield f"{name}: choose", all_of(choose), layers * rows * (seen // indexer.ratio) * indexer.head_dim * 4
        choose(window)
        seen = min(seen, indexer.budget + seen % indexer.ratio) if position >= indexer.dense_positions else seen
    yield f"{name}: attend", all_of(attend), layers * rows * seen * cell_bytes
