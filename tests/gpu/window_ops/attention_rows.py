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
from tests.kernels import attention_checks as checks
from tests.kernels.attention_cases import (
    GATED,
    INDEXED,
    PLAIN,
    PUBLISHED,
    AttentionWindow,
    Segment,
    random_window,
    window_rows,
)

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXT = 262_144
LEAST_LAUNCHES = 16  # of an op in what is timed
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


def window_of(name: str, bucket: int, device: torch.device) -> AttentionWindow:
    """A window of a shape in `SHAPES`."""
    shape = SHAPES[name]
    reach = 300 if shape.indexer is None else shape.indexer.dense_positions
    segments, unused = segments_of(bucket, reach)
    cells = -(-(3 * reach + 16) // 512) * 512
    half = 4 if name.startswith("tiny") else 32
    return random_window(shape, segments, cells, half=half, unused=unused, device=device, is_normed=name != "llama")


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Name and check, each with a window of its own."""
    for name in SHAPES:
        for bucket in BUCKETS if name in ("qwen4_exp", "tiny indexed") else (1, 6, 32):
            yield f"{name}, {bucket} rows: prepare", partial(_on_window, checks.check_prepared, name, bucket, device)
            yield f"{name}, {bucket} rows: attend", partial(_on_window, checks.check_attended, name, bucket, device)
        yield f"{name}: later launches", partial(_on_window, checks.check_again, name, 32, device)
        yield f"{name}: alone as in company", partial(_on_window, checks.check_company, name, 32, device)
        yield f"{name}: quantized rows", partial(_on_window, checks.check_quantized, name, 12, device)
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


def _on_window(check: Callable[[AttentionWindow], None], name: str, bucket: int, device: torch.device) -> None:
    check(window_of(name, bucket, device))


def _check_long(shape: AttentionRowsShape, position: int, device: torch.device) -> None:
    cells = -(-(position + 1) // 512) * 512
    checks.check_attended(random_window(shape, [(0, position - 1, 2), (1, 3000, 1)], cells, half=32, device=device))


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
        for name, part in vars(window.cells).items():
            assert torch.equal(part, getattr(fresh.cells, name)), f"other {name} at {segments}"


def _check_far_slot(device: torch.device) -> None:
    """Slot 17 of 18 begins behind element 2^31 of the keys; it gives the bits of the same cells in slot 0."""
    near = random_window(PUBLISHED, [(0, 30_000, 2)], CONTEXT, half=32, device=device)
    parts = {name: part.new_zeros(18, *part.shape[1:]) for name, part in vars(near.cells).items()}
    for name, part in vars(near.cells).items():
        parts[name][17].copy_(part[0])
    far = replace(near, rows=window_rows([(17, 30_000, 2)], 0, device), cells=AttentionCells(**parts))
    results = [torch.empty(2, PUBLISHED.query_width, device=device) for _ in range(2)]
    for window, out in zip((near, far), results, strict=True):
        launch_all(window, RowsOut(out, None))
    assert torch.equal(*results)
    for name, part in vars(near.cells).items():
        assert torch.equal(parts[name][17], part[0]), f"other {name}"


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Name, launches, bytes of cells. Rows have slots of their own; few rows take several layers, so that cells come
    from memory and not from the cache: the time is that of all of them, as the bytes are."""
    for name, rows, layers, position in (
        ("qwen4_exp", 1, 12, 30_000), ("qwen4_exp", 4, 4, 30_000), ("qwen4_exp", 32, 1, 30_000),
        ("qwen4_exp", 1, 12, 1500), ("qwen4_exp", 8, 4, 1024), ("qwen4_exp", 1, 2, CONTEXT - 1),
        ("qwen3_next", 1, 4, 30_000), ("qwen3_next", 1, 1, CONTEXT - 1), ("qwen3_moe", 1, 12, 4000),
    ):  # fmt: skip
        windows = _layers_of(SHAPES[name], rows, layers, position, device)
        yield from _speeds_of(f"{name}, {rows} rows at {position}, {layers} layers", windows, position)


def _layers_of(
    shape: AttentionRowsShape, rows: int, layers: int, position: int, device: torch.device
) -> list[AttentionWindow]:
    """Windows that share all but their cells."""
    cells = -(-(position + 1) // 512) * 512
    segments = [(slot, position, 1) for slot in range(rows)]
    first = random_window(shape, segments, cells, half=32, device=device)
    windows = [first]
    for _ in range(layers - 1):
        parts = (None if part is None else torch.randn_like(part) for part in vars(first.cells).values())
        windows.append(replace(first, cells=AttentionCells(*parts)))
    return windows


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

    columns = shape.projected_width + shape.query_width + 2 * shape.kv_heads * shape.head_dim
    name = f"{name} x {rounds}"
    yield f"{name}: prepare", all_of(prepare), layers * rows * columns * 4
    prepare(window)
    if indexer is not None:
        yield f"{name}: choose", all_of(choose), layers * rows * (seen // indexer.ratio) * indexer.head_dim * 4
        choose(window)
        seen = min(seen, indexer.budget + seen % indexer.ratio) if position >= indexer.dense_positions else seen
    cell_bytes = 2 * shape.kv_heads * shape.head_dim * 4
    yield f"{name}: attend", all_of(attend), layers * rows * seen * cell_bytes
