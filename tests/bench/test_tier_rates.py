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
from strata.bench.tier_rates import CpuLists, ExpertMemory, card_lists, measure_tier_rates
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
    with Pool(1, is_pinned=False) as pool:
        yield pool


def test_lists_have_no_expert_in_common(memory: ExpertMemory) -> None:
    assert memory.lists_of_a_piece == 16 // LISTED
    assert memory.list_bytes == LISTED * memory.layout.total_bytes
    listed = torch.cat([each.work.seats for each in card_lists(memory, CPU)])
    assert listed.numel() == LISTED * memory.lists_of_a_piece
    assert listed.unique().numel() == listed.numel()


def test_both_sides_compute_experts_of_their_own_piece_with_the_same_bits(memory: ExpertMemory, pool: Pool) -> None:
    """The CPU's first list, computed where the card's lists are: by the definition, in place."""
    on_cpu = CpuLists(memory, pool)
    on_cpu.run_one()
    (experts,) = torch.randperm(15, generator=torch.Generator().manual_seed(1)).split(15)
    on_card = card_lists(ExpertMemory(memory.layout, memory.pieces[::-1], LISTED), CPU)[0]
    on_card = replace(on_card, work=ExpertWork.from_choices(experts[:LISTED][None]))
    assert on_card.x.plain is not None
    on_card.x.plain.copy_(on_cpu.x)
    on_card()
    assert on_card.buffers.by_rank.abs().sum() > 0
    assert torch.equal(on_card.buffers.by_rank, on_cpu.out)


def test_a_list_follows_the_last_and_the_first_comes_again(memory: ExpertMemory, pool: Pool) -> None:
    on_cpu = CpuLists(memory, pool)
    found = []
    for _ in range(memory.lists_of_a_piece + 1):
        on_cpu.run_one()
        found.append(on_cpu.out.clone())
    assert torch.equal(found[0], found[-1])
    assert not torch.equal(found[0], found[1])
    assert on_cpu.run() > 0


class PlayedCard:
    """A card that is busy while the CPU computes so many lists."""

    def __init__(self, lists: int) -> None:
        self.replays = 0
        self._left = lists

    def replay(self) -> None:
        self.replays += 1

    def record(self) -> None:
        pass

    def query(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_rates_are_bytes_over_seconds_alone_and_at_once(
    memory: ExpertMemory, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, clock = PlayedCard(lists=6), iter((10.0, 12.0))
    made = card_lists(memory, CPU)
    timing = SimpleNamespace(
        captured=lambda calls: card,
        seconds=lambda calls, rounds: (0.5, 0.0),
        host_rates_gb_per_s=lambda part: (9.0, 8.0),
    )
    monkeypatch.setitem(sys.modules, "strata.bench.device_timing", timing)
    monkeypatch.setattr(tier_rates, "card_lists", lambda memory, device: made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: card)
    monkeypatch.setattr(CpuLists, "run", lambda lists: 0.25)
    monkeypatch.setattr(tier_rates, "read_seconds", lambda pool, part: 0.1)
    monkeypatch.setattr(tier_rates, "perf_counter", lambda: next(clock))
    found = measure_tier_rates(memory, pool, 4000.0)
    size = memory.list_bytes / 1e9
    assert (found.vram, found.in_place_read) == (4000, 8)
    assert (found.in_place, found.cpu) == (size / 0.5, size / 0.25)
    assert found.cpu_read == pytest.approx(memory.pieces[-1].numel() / 0.1 / 1e9)
    assert card.replays == 2  # five lists of half a second each, twice at least
    assert found.both_in_place == pytest.approx(2 * len(made) * size / 2)
    assert found.both == pytest.approx(found.both_in_place + 6 * size / 2)
