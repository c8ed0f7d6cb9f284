"""A layer's experts over given buffers by their definition: bits, places that no work lists, addresses, refusals."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.expert_rows import ExpertBuffers, SharedExpert, expert_rows_into
from strata.kernels.expert_rows.reference import expert_rows, matrix_rows, silu_times
from strata.kernels.expert_rows.reference_window import expert_matrices
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.layout import BlobLayout
from tests.kernels.random_matrices import KINDS, Experts, random_choices, random_experts, random_matrix, random_rows

KIND = {kind.name: kind for kind in KINDS}
LAYOUT = BlobLayout(KIND["q4_0"].layout(32, 64), KIND["q8_0"].layout(32, 64), KIND["q8_0"].layout(64, 32))
ROWS, RANKS = 3, 2
X = random_rows(1, ROWS, 64)


def computed(experts: Experts, blobs: ExpertBlobs, choices: torch.Tensor) -> None:
    buffers = ExpertBuffers.empty(LAYOUT, ROWS, RANKS, "cpu")
    expert_rows_into(blobs, ExpertWork.from_choices(choices), RowsOut(X, None), buffers)
    for row in range(ROWS):
        for rank in range(RANKS):
            wanted = expert_rows(*experts.matrices[int(choices[row, rank])], X[row : row + 1])[0]
            assert torch.equal(buffers.by_rank[row, rank], wanted)


def test_every_place_is_its_expert_of_its_row() -> None:
    experts = random_experts(1, LAYOUT, 5)
    computed(experts, experts.blobs, random_choices(2, ROWS, RANKS, 5))


def test_blobs_may_lie_anywhere() -> None:
    experts = random_experts(1, LAYOUT, 5)
    addresses = experts.blobs.memory.data_ptr() + torch.arange(5) * LAYOUT.total_bytes
    computed(experts, replace(experts.blobs, addresses=addresses), random_choices(2, ROWS, RANKS, 5))
    elsewhere = replace(experts.blobs, addresses=addresses.flip(0))
    found = expert_matrices(elsewhere, 0)
    assert torch.equal(found[2].codes, experts.matrices[4][2].codes)
    assert [each.post_scale for each in found] == [each.post_scale for each in experts.matrices[4]]


def test_places_that_no_work_lists_keep_what_they_had() -> None:
    buffers = ExpertBuffers.empty(LAYOUT, ROWS, RANKS, "cpu")
    buffers.by_rank.fill_(7.0)
    expert_rows_into(
        random_experts(1, LAYOUT, 2).blobs, ExpertWork.empty(ROWS, RANKS, "cpu"), RowsOut(X, None), buffers
    )
    assert bool((buffers.by_rank == 7).all())


def test_the_shared_expert_is_computed_beside_them() -> None:
    down, gate_up = random_matrix(3, KIND["bf16"].layout(64, 20)), random_rows(4, ROWS, 43)[:, 3:]
    buffers = ExpertBuffers.empty(LAYOUT, ROWS, RANKS, "cpu", down.layout)
    work = ExpertWork.from_choices(random_choices(2, ROWS, RANKS, 2))
    shared = SharedExpert(gate_up, down)
    expert_rows_into(random_experts(1, LAYOUT, 2).blobs, work, RowsOut(X, None), buffers, shared)
    gate, up = gate_up.contiguous().chunk(2, dim=1)
    assert buffers.shared_rows is not None
    assert torch.equal(buffers.shared_rows, matrix_rows(down, silu_times(gate, up)))


def test_room_is_told_before_it_is_made() -> None:
    down = KIND["q8_0"].layout(64, 96)
    made = ExpertBuffers.empty(LAYOUT, ROWS, RANKS, "cpu", down)
    tensors = [made.gate_up, made.hidden.plain, made.by_rank, made.shared_rows]
    tensors.append(made.shared_hidden.plain if made.shared_hidden else None)
    assert ExpertBuffers.bytes(LAYOUT, ROWS, RANKS, down) == sum(each.nbytes for each in tensors if each is not None)


def test_what_does_not_fit_is_refused() -> None:
    blobs, work = random_experts(1, LAYOUT, 2).blobs, ExpertWork.empty(ROWS, RANKS, "cpu")
    buffers, rows = ExpertBuffers.empty(LAYOUT, ROWS, RANKS, "cpu"), RowsOut(X, None)
    with pytest.raises(ValueError, match=r"by_rank must be \[rows, 2, 64\]"):
        expert_rows_into(blobs, work, rows, replace(buffers, by_rank=torch.zeros(ROWS, 3, 64)))
    with pytest.raises(ValueError, match=r"gate_up must be \[6, 64\]"):
        expert_rows_into(blobs, work, rows, replace(buffers, gate_up=torch.zeros(6, 32)))
    with pytest.raises(ValueError, match=r"rows must be float32 \[3, 64\]"):
        expert_rows_into(blobs, work, RowsOut(X[:2], None), buffers)
    shared = SharedExpert(torch.zeros(ROWS, 40), random_matrix(3, KIND["bf16"].layout(64, 20)))
    with pytest.raises(ValueError, match=r"needs buffers.shared_hidden"):
        expert_rows_into(blobs, work, rows, buffers, shared)
    room = ExpertBuffers.empty(LAYOUT, ROWS, RANKS, "cpu", shared.down.layout)
    with pytest.raises(ValueError, match="64 x 20 does not fit gate_up"):
        expert_rows_into(blobs, work, rows, room, replace(shared, gate_up=torch.zeros(ROWS, 30)))
