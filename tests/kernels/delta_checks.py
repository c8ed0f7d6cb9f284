"""What must hold of a delta net's windows that leave the state of certain segments: bit for bit what a commit replays.

Knows no road: the twin, Triton in its interpreter and a GPU are asked the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from strata.kernels.delta_rows import DeltaRowsShape, DeltaRowsWork, DeltaStates, SegmentLengths
from strata.kernels.packed_rows.rows_out import RowsOut
from tests.kernels.delta_cases import ANY, DeltaCase, copy_of, random_case
from tests.kernels.window_cases import window_of

LAYERS, SLOTS = 2, 8


@dataclass(frozen=True)
class CertainCase:
    """A bucket of segments (slot, rows), and what its launches know of their lengths."""

    bucket: int
    segments: Sequence[tuple[int, int]]
    lengths: SegmentLengths


CERTAIN = {
    "1 row": CertainCase(1, [(2, 1)], SegmentLengths(1, 1)),
    "slots of 1 row": CertainCase(8, [(3, 1), (0, 1), (1, 0), (2, 1)], SegmentLengths(1, 1)),
    "8 slots of 1 row": CertainCase(8, [(slot, 1) for slot in range(8)], SegmentLengths(1, 1)),
    "slots of 1 row and of more": CertainCase(12, [(2, 3), (0, 1), (3, 0), (1, 2)], SegmentLengths(4, 1)),
    "slots of 1 row where more may come": CertainCase(4, [(3, 1), (0, 1)], SegmentLengths(4, 1)),
    "all rows of 3 slots": CertainCase(8, [(1, 5), (3, 1), (0, 2)], SegmentLengths(8, 8)),
    "all 32 rows of 1 slot": CertainCase(32, [(5, 32)], SegmentLengths(32, 32)),
}


def check_certain(
    delta_rows: Callable[..., None],
    commit_delta: Callable[..., None],
    shape: DeltaRowsShape,
    certain: CertainCase,
    device: torch.device | str = "cpu",
) -> None:
    """The window and its commit beside those that replay every row; uncertain segments lose their last row."""
    case, bucket = random_case(shape, LAYERS, SLOTS, certain.bucket, device), certain.bucket
    before, replayed, lengths = copy_of(case.states), copy_of(case.states), certain.lengths
    wanted = _run_window(delta_rows, case, replayed, certain, ANY)
    assert torch.equal(replayed.delta, before.delta), "a window that may be refused changed the state"
    found = _run_window(delta_rows, case, case.states, certain, lengths)
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32)), "rows have other bits"
    assert torch.equal(case.states.conv_tail, before.conv_tail), "a window moved a tail"
    sure = [slot for slot, count in certain.segments if 0 < count <= lengths.certain]
    others = [slot for slot in range(SLOTS) if slot not in sure]
    assert torch.equal(case.states.delta[:, others], before.delta[:, others]), "an uncertain slot's state was written"
    rows = window_of(certain.segments, bucket, device=device)
    taken = [count if count <= lengths.certain else count - 1 for _, count in certain.segments]
    accepted = torch.tensor(taken, dtype=torch.int32, device=device)
    commit_delta(replayed, case.projected, rows, ANY, accepted, case.vectors, shape)
    assert torch.equal(case.states.delta[:, sure], replayed.delta[:, sure]), "written state is not the replayed one"
    commit_delta(case.states, case.projected, rows, lengths, accepted, case.vectors, shape)
    assert torch.equal(case.states.delta, replayed.delta), "the state behind the commit is not the replayed one"
    assert torch.equal(case.states.conv_tail, replayed.conv_tail), "the tail behind the commit is not the replayed one"


def _run_window(
    delta_rows: Callable[..., None], case: DeltaCase, states: DeltaStates, certain: CertainCase, lengths: SegmentLengths
) -> torch.Tensor:
    """Rows' results [layers, rows, value_width]; unused rows stay 7. What is read before it is written is NaN."""
    device = case.projected.device
    rows = window_of(certain.segments, certain.bucket, device=device)
    found = torch.full((LAYERS, certain.bucket, case.shape.value_width), 7.0, device=device)
    for layer in range(LAYERS):
        work = DeltaRowsWork.empty(certain.bucket, case.shape, device)
        work.inputs.fill_(float("nan"))
        work.recalled.fill_(float("nan"))
        of_layer = (states.layer(layer), case.vectors.layer(layer))
        delta_rows(case.projected[layer], rows, lengths, *of_layer, case.shape, work, RowsOut(found[layer], None), None)
    return found
