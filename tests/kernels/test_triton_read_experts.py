"""Experts of reads by Triton in its interpreter: the twin's results, the same bits however the work is cut."""

from functools import partial

import pytest
import torch

from strata.kernels.read_experts import ReadExperts, ReadWork, reference
from strata.kernels.read_experts import combine_ranks as combine_by_definition
from strata.quant.layout import BlobLayout
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import KINDS
from tests.kernels.read_cases import ExpertCase, random_x

pytestmark = needs_interpreter

CPU = torch.device("cpu")
KIND = {kind.name: kind for kind in KINDS}


def test_bits_stay_however_rows_and_experts_are_cut() -> None:
    from strata.kernels.read_experts.launches import ExpertLaunch
    from strata.kernels.read_experts.triton import experts_down, experts_hidden

    pairs = []
    for launch in (ExpertLaunch(128, 64), ExpertLaunch(128, 0, 128, groups=2)):
        pairs += [partial(experts_hidden, launch=launch), partial(experts_down, launch=launch)]
    ExpertCase(KIND["q4_0"], KIND["q4_0"], KIND["q8_0"], 64, 32, (0, 1, 33, 66, 200)).check(CPU, pairs)


@pytest.mark.parametrize("names", [("nvfp4", "nvfp4", "f32"), ("bf16", "bf16", "q2_0"), ("q4_0", "q8_0", "q4_0")])
def test_codes_may_differ_between_matrices(names: tuple[str, str, str]) -> None:
    from strata.kernels.read_experts.triton import experts_down, experts_hidden

    ExpertCase(*(KIND[name] for name in names), 64, 64, (2, 0, 4)).check(CPU, [experts_hidden, experts_down])


def test_tiles_of_rows_are_listed_on_the_device() -> None:
    from strata.kernels.read_experts.tiles import list_tiles

    starts = torch.tensor([0, 0, 200, 201, 329, 457], dtype=torch.int32)
    chosen = torch.tensor([4, 0, 1, 3], dtype=torch.int32)
    kind = KIND["bf16"].layout(8, 8)
    experts = ReadExperts(BlobLayout(kind, kind, kind), torch.zeros(5, dtype=torch.int64), chosen)
    found = list_tiles(experts, ReadWork(torch.zeros(457, dtype=torch.int32), starts), 40, 128)
    assert found[:4].tolist() == [[4, 329, 457], [1, 0, 128], [1, 128, 200], [3, 201, 329]]
    assert all(first == last for _, first, last in found[4:].tolist())


def test_routing_and_the_sum_of_ranks_are_the_twins() -> None:
    from strata.kernels.read_experts.rows import combine_ranks, route_many

    logits = torch.randn(3, 23, generator=torch.Generator().manual_seed(0))[:, 1:21]
    logits[:, ::3] = logits[:, ::3].round()  # ties
    ids, weights = torch.zeros(3, 4, dtype=torch.int32), torch.zeros(3, 4)
    for normalize in (True, False):
        wanted_ids, wanted = torch.zeros_like(ids), torch.zeros_like(weights)
        reference.route_many(logits, normalize, wanted_ids, wanted)
        route_many(logits, normalize, ids, weights)
        assert torch.equal(ids, wanted_ids)
        assert torch.allclose(weights, wanted, rtol=1e-6, atol=0)
    by_rank, shared, gates = random_x(1, 12, 13, CPU).view(3, 4, 13), random_x(2, 3, 13, CPU), torch.rand(3)
    for rows, its_gates in ((None, None), (shared, None), (shared, gates)):
        out, wanted = torch.empty(3, 13), torch.empty(3, 13)
        combine_ranks(by_rank, weights, rows, its_gates, out)
        combine_by_definition(by_rank, weights, rows, its_gates, wanted)
        assert torch.equal(out, wanted)
