"""The n-gram embedding of windows on a GPU: held against its twin and against itself, and its launches for timing."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.ngram_rows import (
    NgramHash,
    NgramRowsShape,
    commit_ngram,
    ngram_finish,
    ngram_gather,
    reference,
)
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.quant.layout import Array, MatrixLayout
from strata.quant.packed import PackedMatrix, view_matrix
from tests.gpu.window_ops.delta_rows import SLOTS, WINDOWS, assert_near, used_rows
from tests.kernels.ngram_asking import AskingCase
from tests.kernels.ngram_cases import PUBLISHED, TINY, random_case, random_hash
from tests.kernels.quantized_rows import assert_quantized
from tests.kernels.random_matrices import KINDS, Kind, on_device, random_matrix
from tests.kernels.window_cases import window_of

VOCABULARY = 248320
TABLE_COLUMNS = 160  # of the published model: 16 heads of 2,560 columns
KIND = {kind.name: kind for kind in KINDS}


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Names and checks; a check raises AssertionError."""
    for kind in KINDS:
        yield f"ngram_gather {kind.name}", partial(check_kind, device, kind)
    for window, (bucket, segments) in WINDOWS.items():
        yield f"ngram_gather, {window}", partial(check_gather, device, bucket, segments, False, 3000)
        yield f"ngram_ask, ngram_collect, {window}", partial(check_asking, device, bucket, segments)
        for name, shape in (("published", PUBLISHED), ("tiny", TINY)):
            yield f"ngram_finish {name}, {window}", partial(check_finish, device, shape, bucket, segments)
    yield "ngram_ask, ngram_collect, rows of a prompt", partial(check_asking, device, 512, [(1, 512)])
    yield "ngram_gather in pinned memory", partial(check_gather, device, *WINDOWS["1 row"], True, 3000)
    yield (
        "ngram_gather beyond 2^31 elements",
        partial(check_gather, device, *WINDOWS["3 rows of 1 slot"], False, 900_000),
    )
    for name, shape in (("published", PUBLISHED), ("tiny", TINY)):
        yield f"ngram_finish {name}, row by row", partial(check_row_by_row, device, shape)


def large_table(rows: int, device: torch.device, is_pinned: bool) -> PackedMatrix:
    """Random codes of q4_0, all scales 0.01, in the GPU's memory or in pinned host memory."""
    layout: MatrixLayout = KIND["q4_0"].layout(rows, TABLE_COLUMNS)
    buffer = torch.randint(256, (layout.total_bytes,), dtype=torch.uint8, device=device)
    if is_pinned:
        buffer = buffer.cpu().pin_memory()
    table = view_matrix(layout, buffer, layout.places())
    table.array(Array.SCALES).view(torch.float16).fill_(0.01)
    return table


def random_history(hash: NgramHash, device: torch.device) -> torch.Tensor:
    """The last tokens of every slot, some of them an end of text."""
    generator = torch.Generator().manual_seed(1)
    history = torch.randint(VOCABULARY, (SLOTS, hash.history_rows), generator=generator).int()
    history[1, 0] = history[2, -1] = hash.end_of_text
    return history.to(device)


def check_gather(
    device: torch.device, bucket: int, segments: list[tuple[int, int]], is_pinned: bool, head_rows: int
) -> None:
    """Exact rows of a table of 16 heads, plain and quantized."""
    hash = random_hash(VOCABULARY, head_rows, 3, 8, device)
    table = large_table(int(hash.head_sizes.sum()), device, is_pinned)
    rows, history = window_of(segments, bucket, device=device, vocabulary=VOCABULARY), random_history(hash, device)
    rows.tokens[bucket // 2] = hash.end_of_text
    wanted, found = torch.full((2, bucket, hash.heads * TABLE_COLUMNS), 7.0, device=device)
    reference.ngram_gather(rows, history, table, hash, RowsOut(wanted, None))
    quantized = Activations.empty(bucket, found.shape[1] // 32, device, LaunchShape())
    ngram_gather(rows, history, table, hash, RowsOut(found, quantized))
    off = (found != wanted).sum().item()
    assert off == 0, f"{off} of {found.numel()} values differ"
    assert_quantized(quantized, found, used_rows(segments))


def check_asking(device: torch.device, bucket: int, segments: list[tuple[int, int]]) -> None:
    """A window asks for rows of a table in a file, and somebody answers: with a gate and without."""
    hash = random_hash(VOCABULARY, 3000, 3, 8)
    rows, history = window_of(segments, bucket, vocabulary=VOCABULARY), random_history(hash, torch.device("cpu"))
    rows.tokens[bucket // 2] = hash.end_of_text
    table = large_table(int(hash.head_sizes.sum()), torch.device("cpu"), False)
    for has_gate in (False, True):
        AskingCase(rows, history, hash, table, used_rows(segments)).check(device, has_gate=has_gate)


def check_kind(device: torch.device, kind: Kind) -> None:
    """Every storage code, bit for bit."""
    hash = random_hash(1000, 30, 3, 2, device)
    columns = 256 if kind.step == 256 else 192 if kind.step > 1 else 16
    table = random_matrix(5, kind.layout(int(hash.head_sizes.sum()), columns), post_scale=0.37)
    history, rows = torch.ones(2, 2, dtype=torch.int32, device=device), window_of([(1, 3)], 4, device=device)
    wanted, found = torch.full((2, 4, hash.heads * columns), 7.0, device=device)
    reference.ngram_gather(rows, history, table, hash, RowsOut(wanted, None))
    quantized = Activations.empty(4, found.shape[1] // 32, device, LaunchShape())
    ngram_gather(rows, history, on_device(table, device), hash, RowsOut(found, quantized))
    off = (found.view(torch.int32) != wanted.view(torch.int32)).sum().item()
    assert off == 0, f"{off} of {found.numel()} values differ"
    assert_quantized(quantized, found, [0, 1, 2])


def check_finish(device: torch.device, shape: NgramRowsShape, bucket: int, segments: list[tuple[int, int]]) -> None:
    """Values, and the tails and the history after a commit."""
    case, twin = (random_case(shape, 2, SLOTS, bucket, device) for _ in range(2))
    rows, used = window_of(segments, bucket, device=device), used_rows(segments)
    for layer in range(2):
        ngram_finish(*case.products, rows, case.tails[layer], case.vectors, shape, case.normed[layer], case.out)
        reference.ngram_finish(
            twin.products, rows, twin.tails[layer], twin.vectors, shape, twin.normed[layer], twin.out
        )
        assert_near("values", case.out[used], twin.out[used])
        assert_near("normed", case.normed[layer, used], twin.normed[layer, used])
    assert torch.equal(case.out[len(used) :], twin.out[len(used) :]), "an unused row was written"
    found = torch.arange(SLOTS * 2, dtype=torch.int32, device=device).view(SLOTS, 2)
    wanted = found.clone()
    accepted = torch.tensor([max(0, count - index % 2) for index, (_, count) in enumerate(segments)])
    accepted = accepted.int().to(device)
    commit_ngram(found, case.tails, case.normed, rows, accepted)
    reference.commit_ngram(wanted, twin.tails, case.normed, rows, accepted)
    assert torch.equal(found, wanted), f"history {found.tolist()} instead of {wanted.tolist()}"
    assert torch.equal(case.tails, twin.tails), "tails"


def check_row_by_row(device: torch.device, shape: NgramRowsShape) -> None:
    """Rows in one window, and the same rows one by one with commits: equal bits."""
    case, history = random_case(shape, 1, SLOTS, 14, device), torch.zeros(SLOTS, 2, dtype=torch.int32, device=device)
    rows = window_of([(1, 1), (2, 12)], 14, device=device)
    ngram_finish(*case.products, rows, case.tails[0], case.vectors, shape, case.normed[0], case.out)
    for row in range(1, 13):
        products = tuple(each[row : row + 1] for each in case.products)
        alone, kept = (torch.empty(1, shape.width, device=device) for _ in range(2))
        single, accepted = window_of([(2, 1)], 1, device=device), torch.ones(1, dtype=torch.int32, device=device)
        ngram_finish(*products, single, case.tails[0], case.vectors, shape, kept, alone)
        commit_ngram(history, case.tails, kept[None], single, accepted)
        off = (alone[0].view(torch.int32) != case.out[row].view(torch.int32)).sum().item()
        assert off == 0, f"row {row - 1}: {off} of {alone.numel()} values have other bits"


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Names, launches of the one layer of the published model, and the bytes that they must move."""
    hash = random_hash(VOCABULARY, 100_000, 3, 8, device)
    shape, history = PUBLISHED, random_history(hash, device)
    tables = {place: large_table(int(hash.head_sizes.sum()), device, place == "pinned") for place in ("VRAM", "pinned")}
    for bucket, segments in ((1, [(0, 1)]), (4, [(0, 4)]), (32, [(slot, 4) for slot in range(8)])):
        case, rows = random_case(shape, 1, SLOTS, bucket, device), window_of(segments, bucket, device=device)
        quantized = Activations.empty(bucket, 80, device, LaunchShape())
        for place, table in tables.items():
            gather = partial(ngram_gather, rows, history, table, hash, RowsOut(None, quantized))
            row_bytes = hash.heads * (TABLE_COLUMNS // 2 + TABLE_COLUMNS // 32 * 2)
            yield f"ngram_gather {place}, {bucket} rows", gather, bucket * row_bytes
        finish = partial(
            ngram_finish, *case.products, rows, case.tails[0], case.vectors, shape, case.normed[0], case.out
        )
        yield f"ngram_finish {bucket} rows", finish, 4 * shape.width * bucket * (shape.conv_kernel + 5)
        accepted = torch.tensor([count for _, count in segments], dtype=torch.int32, device=device)
        commit = partial(commit_ngram, history, case.tails, case.normed, rows, accepted)
        yield f"commit_ngram {bucket} rows", commit, 8 * shape.width * shape.tail_rows * len(segments)
