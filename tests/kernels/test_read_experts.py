"""Experts of reads: the definition against plain float64, cuts of rows and experts, and what is refused."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.expert_rows.reference import exp, fma
from strata.kernels.read_experts import (
    TILE_ROWS,
    ReadExperts,
    ReadWork,
    combine_ranks,
    experts_down,
    experts_hidden,
    group_places,
    most_row_tiles,
    route_many,
)
from strata.kernels.read_experts.launches import DOWN_LAUNCH, HIDDEN_LAUNCH
from strata.quant.layout import BlobLayout
from tests.kernels.random_matrices import KINDS, random_experts
from tests.kernels.read_cases import ExpertCase, assert_close, random_x

CPU = torch.device("cpu")
KIND = {kind.name: kind for kind in KINDS}


def test_experts_are_what_their_matrices_say() -> None:
    gate, up, down = KIND["q4_0"].layout(64, 96), KIND["q8_0"].layout(64, 96), KIND["bf16"].layout(96, 64)
    layout = BlobLayout(gate, up, down)
    made = random_experts(1, layout, 3)
    ids = torch.tensor([[2, 0], [0, 2], [2, 2]], dtype=torch.int32)
    work, x = ReadWork.empty(6, 3, CPU), random_x(2, 3, 96, CPU)
    group_places(ids, work)
    addresses = torch.arange(3) * layout.total_bytes + made.blobs.memory.data_ptr()
    experts = ReadExperts(layout, addresses, torch.arange(3, dtype=torch.int32))
    hidden, by_rank = torch.zeros(6, 64, dtype=torch.bfloat16), torch.zeros(3, 2, 96, dtype=torch.bfloat16)
    experts_hidden(experts, x, work, most_row_tiles(6, 3), hidden)
    experts_down(experts, hidden, work, most_row_tiles(6, 3), by_rank)
    for row in range(3):
        for rank in range(2):
            g, u, d = (
                matrix.decode().to(torch.bfloat16).double() if matrix.post_scale == 1.0 else matrix.decode().double()
                for matrix in made.matrices[int(ids[row, rank])]
            )
            gate_value, up_value = x[row].double() @ g.T, x[row].double() @ u.T
            wanted = gate_value / (1 + torch.exp(-gate_value)) * up_value
            position = work.order.tolist().index(2 * row + rank)
            assert_close(hidden[position][None], wanted[None], 0.02, (row, rank))
            assert_close(by_rank[row, rank][None], (hidden[position].double() @ d.T)[None], 0.02, (row, rank))


def test_bits_stay_however_rows_and_experts_are_cut() -> None:
    case = ExpertCase(KIND["q4_0"], KIND["q4_0"], KIND["q8_0"], 96, 64, (0, 1, 63, 64, 65, 200, 7))
    case.check(CPU, [experts_hidden, experts_down])


def test_places_are_sorted_by_expert_and_place() -> None:
    ids = torch.tensor([[3, 1], [1, 3], [0, 1]], dtype=torch.int32)
    work = ReadWork.empty(8, 5, CPU).of_places(6)
    group_places(ids, work)
    assert work.order.tolist() == [4, 1, 2, 5, 0, 3]
    assert work.starts.tolist() == [0, 1, 4, 4, 6, 6]
    none = work.of_places(0)
    group_places(ids[:0], none)
    assert none.starts.tolist() == [0] * 6


@pytest.mark.parametrize("normalize", [True, False])
def test_rows_are_routed_as_the_router_defines(normalize: bool) -> None:
    logits = torch.tensor([[0.0, 2.0, 9.0, 2.0, -1.0], [5.0, 5.0, 5.0, 5.0, 5.0]])[:, :4]
    ids, weights = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3)
    route_many(logits, normalize, ids, weights)
    assert ids.tolist() == [[2, 1, 3], [0, 1, 2]]
    shares = torch.softmax(logits.double(), dim=1).gather(1, ids.long())
    wanted = shares / shares.sum(dim=1, keepdim=True) if normalize else shares
    assert torch.allclose(weights.double(), wanted, atol=1e-6, rtol=0)
    first = exp(logits[:1] - 9.0)
    assert normalize or weights[0, 0] == (first[0, 2] / first.sum())


def test_ranks_are_added_in_order_then_the_shared_expert() -> None:
    by_rank, weights = random_x(1, 6, 8, CPU).view(3, 2, 8), torch.rand(3, 2)
    shared, gates, out = random_x(2, 3, 8, CPU), torch.rand(3), torch.empty(3, 8)
    total = fma(weights[:, :1].expand(3, 8), by_rank[:, 0].float(), torch.zeros(3, 8))
    total = fma(weights[:, 1:].expand(3, 8), by_rank[:, 1].float(), total)
    combine_ranks(by_rank, weights, None, None, out)
    assert torch.equal(out, total)
    combine_ranks(by_rank, weights, shared, None, out)
    assert torch.equal(out, total + shared.float())
    combine_ranks(by_rank, weights, shared, gates, out)
    assert torch.equal(out, fma(gates[:, None].expand(3, 8), shared.float(), total))


def test_the_bound_of_tiles_holds() -> None:
    assert min(HIDDEN_LAUNCH.tile_rows, DOWN_LAUNCH.tile_rows) >= TILE_ROWS
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        counts = torch.randint(0, 3 * TILE_ROWS, (7,), generator=generator)
        tiles = -(-counts // TILE_ROWS)
        assert most_row_tiles(int(counts.sum()), 7) >= int(tiles.sum())
    assert most_row_tiles(3, 7) == 3


def test_what_does_not_fit_is_refused_by_name() -> None:
    layout = BlobLayout(*(KIND["q8_0"].layout(*size) for size in ((32, 64), (32, 64), (64, 32))))
    experts = ReadExperts(layout, torch.zeros(4, dtype=torch.int64), torch.zeros(2, dtype=torch.int32))
    work, x = ReadWork.empty(6, 4, CPU), torch.zeros(3, 64, dtype=torch.bfloat16)
    hidden, by_rank = torch.zeros(6, 32, dtype=torch.bfloat16), torch.zeros(3, 2, 64, dtype=torch.bfloat16)
    ids, weights = torch.zeros(3, 2, dtype=torch.int32), torch.zeros(3, 2)
    five = replace(experts, addresses=torch.zeros(5, dtype=torch.int64))
    refused = [
        ("x must be contiguous", lambda: experts_hidden(experts, x.float(), work, 4, hidden)),
        ("hidden must be contiguous", lambda: experts_hidden(experts, x, work, 4, hidden[:, :16])),
        ("experts.addresses must be", lambda: experts_hidden(five, x, work, 4, hidden)),
        ("most_tiles is -1", lambda: experts_hidden(experts, x, work, -1, hidden)),
        ("6 places are no whole number of ranks of 4 rows", lambda: experts_hidden(
            experts, torch.zeros(4, 64, dtype=torch.bfloat16), work, 4, hidden)),
        ("by_rank must be contiguous", lambda: experts_down(experts, hidden, work, 4, by_rank.float())),
        ("by_rank has 2 rows of 2 ranks, the work 6 places", lambda: experts_down(
            experts, hidden, work, 4, by_rank[:2])),
        ("ids must be int32", lambda: group_places(ids.long(), work)),
        ("work.order must be", lambda: group_places(ids[:2], work)),
        ("logits must be float32", lambda: route_many(weights.double(), True, ids, weights)),
        ("2 experts: a row goes to 3", lambda: route_many(weights, True, ids.new_zeros(3, 3), weights.new_zeros(3, 3))),
        ("shared_weights are the weights of shared rows", lambda: combine_ranks(
            by_rank, weights, None, torch.zeros(3), torch.zeros(3, 64))),
    ]  # fmt: skip
    for message, run in refused:
        with pytest.raises(ValueError, match=message):
            run()
