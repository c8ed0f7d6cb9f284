"""Lists of experts in main memory that both sides are measured with: no expert twice, and the same bits."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from strata.bench import tier_rates
from strata.bench.synthetic_model import expert_layers_of, make_model, synthetic_config
from strata.bench.tier_memory import TierMemory
from strata.bench.tier_rates import ExpertMemory, card_lists, cpu_lists, measure_tier_rates
from strata.experts.share import Rates
from strata.experts.share_measuring import PoolSide
from strata.kernels.expert_rows.work import ExpertWork
from strata.models.device.synthetic import SyntheticForm
from strata.native import library
from strata.native.pool import Pool

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
CPU = torch.device("cpu")
LISTED = 3


@pytest.fixture(scope="module")
def memory() -> ExpertMemory:
    """16 experts a piece."""
    config, form = synthetic_config(2, True), SyntheticForm()
    taken = TierMemory.take(*expert_layers_of(config, form), CPU, 1)
    make_model(config, form, CPU, take_experts=taken.put)
    return ExpertMemory(taken.layers[0].layout, taken.host.pieces, LISTED)


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(1, keeps_cores=False) as pool:
        yield pool


def test_lists_have_no_expert_in_common(memory: ExpertMemory) -> None:
    assert memory.lists_of_a_piece == 16 // LISTED
    assert memory.list_bytes == LISTED * memory.layout.total_bytes
    listed = torch.cat([each.work.seats for each in card_lists(memory, CPU)])
    assert listed.numel() == LISTED * memory.lists_of_a_piece
    assert listed.unique().numel() == listed.numel()


def test_both_sides_compute_experts_of_their_own_piece_with_the_same_bits(memory: ExpertMemory, pool: Pool) -> None:
    """The CPU's first list, computed where the card's lists are: by the definition, in place."""
    on_cpu = PoolSide(cpu_lists(memory), pool)
    on_cpu.run(1)
    (experts,) = torch.randperm(15, generator=torch.Generator().manual_seed(1)).split(15)
    on_card = card_lists(ExpertMemory(memory.layout, memory.pieces[::-1], LISTED), CPU)[0]
    on_card = replace(on_card, work=ExpertWork.from_choices(experts[:LISTED][None]))
    assert on_card.x.plain is not None
    on_card.x.plain.copy_(on_cpu.x)
    on_card()
    assert on_card.buffers.by_rank.abs().sum() > 0
    assert torch.equal(on_card.buffers.by_rank[0], on_cpu.out)


def test_the_cpus_lists_are_of_the_last_piece_and_have_no_expert_in_common(memory: ExpertMemory) -> None:
    addresses = [blob.data_ptr() for each in cpu_lists(memory) for blob in each.blobs]
    begin = memory.pieces[-1].data_ptr()
    assert len(set(addresses)) == len(addresses) == LISTED * memory.lists_of_a_piece
    assert all(begin <= address < begin + memory.pieces[-1].numel() for address in addresses)


def test_rates_are_those_that_were_measured_in_gigabytes(
    memory: ExpertMemory, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How they are measured is tested beside the measuring."""
    made, card_bytes = card_lists(memory, CPU), []
    timing = SimpleNamespace(
        captured=lambda calls: SimpleNamespace(replay=None), host_rates_gb_per_s=lambda part: (9.0, 8.0)
    )
    monkeypatch.setitem(sys.modules, "strata.bench.device_timing", timing)
    monkeypatch.setattr(tier_rates, "card_lists", lambda memory, device: made)
    monkeypatch.setattr(tier_rates, "CardSide", lambda read, size, device: card_bytes.append(size))
    monkeypatch.setattr(tier_rates, "measure_rates", lambda cpu, link, part_s: Rates(100e9, 50e9, 80e9, 40e9))
    monkeypatch.setattr(tier_rates, "read_seconds", lambda pool, part: 0.1)
    found = measure_tier_rates(memory, pool, 4000.0)
    assert card_bytes == [len(made) * memory.list_bytes]
    assert (found.vram, found.in_place, found.in_place_read, found.cpu) == (4000, 50, 8, 100)
    assert found.cpu_read == pytest.approx(memory.pieces[-1].numel() / 0.1 / 1e9)
    assert (found.both, found.both_in_place) == (120, 40)
