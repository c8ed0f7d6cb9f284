"""The gated delta net of windows on a GPU: held against its twin and against itself, and its launches for timing."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from strata.kernels.delta_rows import (
    DeltaRowsShape,
    DeltaRowsWork,
    SegmentLengths,
    commit_delta,
    delta_rows,
    reference,
)
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.window_rows import WindowRows
from tests.kernels.delta_cases import ANY, PUBLISHED, TINY, WIDER, DeltaCase, copy_of, random_case
from tests.kernels.delta_checks import CERTAIN, check_certain
from tests.kernels.quantized_rows import assert_quantized
from tests.kernels.window_cases import window_of

LAYERS = 36  # of the published model
SHAPES = {"published": PUBLISHED, "tiny": TINY, "wider": WIDER}
WINDOWS = {  # bucket, segments (slot, rows)
    "1 row": (1, [(0, 1)]),
    "3 rows of 1 slot": (3, [(2, 3)]),
    "4 slots, 2 rows unused": (12, [(3, 1), (0, 4), (1, 3), (2, 2)]),
    "8 slots, one of no rows": (32, [(0, 4), (1, 0), (7, 1), (3, 8), (2, 4), (5, 2), (6, 5), (4, 6)]),
    "32 rows of 1 slot": (32, [(1, 32)]),
}
SLOTS = 8


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """Names and checks; a check raises AssertionError."""
    for name, shape in SHAPES.items():
        for window, (bucket, segments) in WINDOWS.items():
            yield f"delta_rows {name}, {window}", partial(check_window, device, shape, bucket, segments)
        for certain, case in CERTAIN.items():
            check = partial(check_certain, delta_rows, commit_delta, shape, case, device)
            yield f"delta_rows {name}, certain: {certain}", check
        yield f"delta_rows {name}, row by row", partial(check_row_by_row, device, shape)
        yield f"delta_rows {name}, order", partial(check_order, device, shape)


def used_rows(segments: list[tuple[int, int]]) -> list[int]:
    """Rows of the bucket that belong to a slot."""
    return list(range(sum(count for _, count in segments)))


def assert_near(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal but for the order of sums: to 2e-5 of the largest value."""
    largest, error = wanted.abs().max().item(), (found - wanted).abs().max().item()
    assert error <= 2e-5 * largest, f"{name}: {error} off, where the largest value is {largest}"


def check_window(device: torch.device, shape: DeltaRowsShape, bucket: int, segments: list[tuple[int, int]]) -> None:
    """Values, quantized rows and the state after a commit of about half of the rows, in two layers."""
    case, rows = random_case(shape, 2, SLOTS, bucket, device), window_of(segments, bucket, device=device)
    used, before = used_rows(segments), copy_of(case.states)
    wanted, found = torch.full((2, bucket, shape.value_width), 7.0, device=device)
    work = DeltaRowsWork.empty(bucket, shape, device)
    arguments = (case.projected[1], rows, ANY, case.states.layer(1), case.vectors.layer(1), shape, work)
    reference.delta_rows(*arguments, RowsOut(wanted, None), None)
    quantized = Activations.empty(bucket, shape.value_width // 32, device, LaunchShape())
    delta_rows(*arguments, RowsOut(found, quantized))
    assert_near("rows", found, wanted)
    assert torch.equal(found[len(used) :], wanted[len(used) :]), "an unused row was written"
    assert_quantized(quantized, found, used)
    assert torch.equal(case.states.delta, before.delta), "the window changed the state"
    accepted = torch.tensor([(count + index) // 2 if count else 0 for index, (_, count) in enumerate(segments)])
    accepted = torch.minimum(accepted, torch.tensor([count for _, count in segments])).int().to(device)
    reference.commit_delta(before, case.projected, rows, ANY, accepted, case.vectors, shape)
    commit_delta(case.states, case.projected, rows, ANY, accepted, case.vectors, shape)
    assert_near("state", case.states.delta, before.delta)
    assert torch.equal(case.states.conv_tail, before.conv_tail), "conv tail"


def check_row_by_row(device: torch.device, shape: DeltaRowsShape) -> None:
    """Rows in one window, and the same rows one by one with commits, alone in another bucket and slot: equal bits."""
    count = 6
    case = random_case(shape, 1, SLOTS, 8, device)
    vectors = case.vectors.layer(0)
    case.states.delta[:, 5], case.states.conv_tail[:, 5] = case.states.delta[:, 2], case.states.conv_tail[:, 2]
    together, work = torch.empty(8, shape.value_width, device=device), DeltaRowsWork.empty(8, shape, device)
    rows = window_of([(1, 1), (2, count), (0, 1)], 8, device=device)
    delta_rows(case.projected[0], rows, ANY, case.states.layer(0), vectors, shape, work, RowsOut(together, None))
    for step in range(count):
        alone = torch.empty(1, shape.value_width, device=device)
        one, single = case.projected[:, 1 + step : 2 + step].contiguous(), window_of([(5, 1)], 1, 4, device)
        work = DeltaRowsWork.empty(1, shape, device)
        delta_rows(one[0], single, ANY, case.states.layer(0), vectors, shape, work, RowsOut(alone, None))
        accepted = torch.tensor([1, 0, 0, 0], dtype=torch.int32, device=device)
        commit_delta(case.states, one, single, ANY, accepted, case.vectors, shape)
        off = (alone[0].view(torch.int32) != together[1 + step].view(torch.int32)).sum().item()
        assert off == 0, f"row {step}: {off} of {alone.numel()} values have other bits"
    accepted = torch.tensor([0, count, 0], dtype=torch.int32, device=device)
    commit_delta(case.states, case.projected, rows, ANY, accepted, case.vectors, shape)
    off = (case.states.delta[0, 2] != case.states.delta[0, 5]).sum().item()
    assert off == 0, f"the state after {count} rows has {off} other bits than after {count} commits"


def check_order(device: torch.device, shape: DeltaRowsShape) -> None:
    """Heads in another order, quantized without plain rows; smaller heads are refused."""
    if shape.value_dim % 32:
        return
    case, rows = random_case(shape, 1, 1, 2, device), window_of([(0, 2)], 2, device=device)
    heads = torch.arange(shape.value_heads).flip(0)
    per_head = shape.value_dim // 32
    order = (heads[:, None] * per_head + torch.arange(per_head)).flatten().int().to(device)
    plain = torch.empty(2, shape.value_width, device=device)
    work = DeltaRowsWork.empty(2, shape, device)
    arguments = (case.projected[0], rows, ANY, case.states.layer(0), case.vectors.layer(0), shape, work)
    delta_rows(*arguments, RowsOut(plain, None))
    quantized = Activations.empty(2, shape.value_width // 32, device, LaunchShape())
    delta_rows(*arguments, RowsOut(None, quantized), order)
    moved = plain.view(2, -1, 32)[:, order.long()].reshape(2, -1)
    assert_quantized(quantized, moved, [0, 1])


def run_layers(
    case: DeltaCase, rows: WindowRows, lengths: SegmentLengths, work: DeltaRowsWork, quantized: Activations
) -> None:
    """A window's launches, two or three a layer."""
    for layer in range(case.projected.shape[0]):
        state, vectors = case.states.layer(layer), case.vectors.layer(layer)
        out = RowsOut(None, quantized)
        delta_rows(case.projected[layer], rows, lengths, state, vectors, case.shape, work, out)


TIMED = (  # slots, rows of each, what is known of them
    (1, 1, SegmentLengths(1, 1)),
    (1, 4, SegmentLengths(4, 1)),
    (4, 1, SegmentLengths(1, 1)),
    (4, 1, SegmentLengths(4, 1)),  # the rule's inputs by a launch of their own, because there may be drafts
    (8, 1, SegmentLengths(1)),
    (8, 1, SegmentLengths(1, 1)),
    (8, 1, SegmentLengths(8, 1)),
    (1, 32, SegmentLengths(32)),
    (1, 32, SegmentLengths(32, 32)),
)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Names, launches of all layers of the published model, and the bytes of state that they must move."""
    shape = PUBLISHED
    state_bytes = 4 * shape.value_width * shape.key_dim * LAYERS
    for slots, count, lengths in TIMED:
        bucket = slots * count
        case = random_case(shape, LAYERS, slots, bucket, device)
        rows = window_of([(slot, count) for slot in range(slots)], bucket, device=device)
        quantized = Activations.empty(bucket, shape.value_width // 32, device, LaunchShape())
        work = DeltaRowsWork.empty(bucket, shape, device)
        name = f"{slots} slots x {count} rows, of {lengths.longest} at most, {lengths.certain} certain, {LAYERS} layers"
        written = slots if count <= lengths.certain else 0
        run = partial(run_layers, case, rows, lengths, work, quantized)
        yield f"delta_rows {name}", run, state_bytes * (slots + written)
        accepted = torch.full((slots,), count, dtype=torch.int32, device=device)
        commit = partial(commit_delta, case.states, case.projected, rows, lengths, accepted, case.vectors, shape)
        yield f"commit_delta {name}", commit, 2 * state_bytes * (slots - written)
