"""Swaps beside windows: whatever is under way, refused or late, a window finds every expert and its bytes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.experts.blob import layout_of
from strata.experts.cache import ExpertId, SwapRule, place_hottest
from strata.experts.store import ExpertStore
from strata.experts.store_plan import StoreLayer, StorePlan
from strata.experts.streams import Mark, PlainStreams
from strata.experts.swapping import ROUNDS_UNDER_WAY, Swapper
from tests.experts.experts import random_expert
from tests.experts.late_lanes import LaneCard
from tests.experts.late_streams import LateCard

LAYOUTS = [  # two sizes
    layout_of(random_expert(name, "Q8_0", width=32, hidden=32)) for name in ("Q4_0", "Q8_0", "Q4_0")
]
LAYERS, EXPERTS = len(LAYOUTS), 50  # two spare places for the layers of one size
EAGER = SwapRule(every=1, most_swaps=6, margin=0.5, decay=0.8, again=1.0)
NONE = SwapRule(every=1, most_swaps=0)


class Setting:
    """A store of marked experts, half of them in seats, a pretended card and the swapper between."""

    def __init__(self, is_exclusive: bool, rule: SwapRule = EAGER, groups: int = 1) -> None:
        layers = tuple(StoreLayer(f"model.layers.{n}.mlp.", layout) for n, layout in enumerate(LAYOUTS))
        sizes = [layout.total_bytes for layout in LAYOUTS]
        has_seat = place_hottest(np.zeros((LAYERS, EXPERTS)), sizes, sum(sizes) * EXPERTS // 2)
        self.store = ExpertStore.create(StorePlan(layers, has_seat, is_exclusive), torch.device("cpu"), 1)
        contents = {}
        for layer, expert in itertools.product(range(LAYERS), range(EXPERTS)):
            where = ExpertId(layer, expert)
            contents[where] = torch.full((sizes[layer],), 1 + layer * EXPERTS + expert, dtype=torch.uint8)
            for memory in (self.store.seat(where), self.store.place(where)):
                if memory is not None:
                    memory.copy_(contents[where])
        self.card = LateCard(self.store, contents) if groups == 1 else LaneCard(self.store, contents, groups)
        self.streams = self.card.streams
        self.swapper = Swapper(self.store, self.card, self.card.asked, self.streams, rule)

    def window(self, rng: np.random.Generator, favourite: int) -> None:
        """A launch that asks for favourites and for anyone, while the roads advance a little."""
        self.swapper.before_launch(False)
        asked = np.hstack(
            ((favourite + rng.integers(0, 12, (LAYERS, 3))) % EXPERTS, rng.integers(0, EXPERTS, (LAYERS, 3)))
        )
        self.card.launch([ExpertId(layer, int(e)) for layer in range(LAYERS) for e in np.unique(asked[layer])])
        self.advance(rng, int(rng.integers(0, 40)))

    def advance(self, rng: np.random.Generator, steps: int) -> None:
        """At times one road runs far ahead of the other."""
        of_main = rng.choice([0.1, 0.5, 0.9, 0.99])
        for _ in range(steps):
            self.streams.advance(self.streams.main if rng.random() < of_main else self.streams.side)

    def finish(self) -> None:
        """Until no swap is under way and none is wanted."""
        for _ in range(40):
            self.card.drain()
            self.swapper.before_launch(True)
            if not self.swapper._moves:
                return
        raise AssertionError("swaps never end")

    def require_agreement(self) -> None:
        """Nothing is in flight: tables say what the store says, and the store has what it began with."""
        self.card.drain()
        self.card.require_whole()
        store, card = self.store, self.card
        assert np.array_equal(card.resident, store.resident)
        assert np.array_equal(card.in_place, store.in_ram)
        assert np.array_equal(card.cpu, store.in_ram)
        if store.is_exclusive:
            assert np.all((store.resident != 0) ^ (store.in_ram != 0))
        else:
            assert np.all(store.in_ram != 0)


@pytest.mark.parametrize("is_exclusive", [False, True])
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30))
def test_every_window_finds_the_right_bytes_while_swaps_come_late(is_exclusive: bool, seed: int) -> None:
    rng, setting = np.random.default_rng(seed), Setting(is_exclusive)
    seats = np.sort(setting.store.resident[setting.store.resident != 0])
    for window in range(40):
        setting.window(rng, favourite=20 + 6 * (window // 5 % 3))
    setting.finish()
    setting.require_agreement()
    assert np.array_equal(np.sort(setting.store.resident[setting.store.resident != 0]), seats)
    assert setting.swapper.swaps > 0
    assert setting.card.looks > 60


@pytest.mark.parametrize("is_exclusive", [False, True])
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30))
def test_windows_of_groups_side_by_side_find_the_right_bytes(is_exclusive: bool, seed: int) -> None:
    """Each group's windows may be far behind those of the others."""
    rng, setting = np.random.default_rng(seed), Setting(is_exclusive, groups=3)
    card = setting.card
    assert isinstance(card, LaneCard)
    for window in range(60):
        card.choose(int(rng.integers(0, 3)))
        setting.window(rng, favourite=20 + 6 * (window // 8 % 3))
        for lane in rng.choice(3, int(rng.integers(0, 3)), replace=False):
            for _ in range(int(rng.integers(0, 30))):
                setting.streams.advance(card.streams.lanes[lane])
    setting.finish()
    for lane in range(3):
        card.choose(lane)
        card.launch([])
        setting.require_agreement()
    assert setting.swapper.swaps > 0
    assert card.looks > 60


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_a_favourite_gets_seats(is_exclusive: bool) -> None:
    rng, setting = np.random.default_rng(1), Setting(is_exclusive)
    assert np.mean(setting.card.resident[:, 35:47] != 0) < 0.5
    for _ in range(60):
        setting.window(rng, favourite=35)
        setting.card.drain()
    assert np.mean(setting.card.resident[:, 35:47] != 0) > 0.9


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_a_call_that_is_refused_at_any_point_loses_no_expert(is_exclusive: bool) -> None:
    calls = _run_with_refusal(is_exclusive, None)
    assert calls > 40
    for fail_at in range(1, calls + 1):
        _run_with_refusal(is_exclusive, fail_at)


def _run_with_refusal(is_exclusive: bool, fail_at: int | None) -> int:
    """Seven windows, one call of which is refused; everything is held against the bytes then and at the end."""
    rng, setting = np.random.default_rng(5), Setting(is_exclusive)
    setting.streams.calls, setting.streams.fail_at = 0, fail_at
    refused = 0
    for _ in range(7):
        try:
            setting.window(rng, favourite=38)
        except RuntimeError as failure:
            assert "is refused" in str(failure)
            refused += 1
            setting.card.drain()
            setting.card.require_whole()
            setting.window(rng, favourite=38)
        setting.advance(rng, 100)
    assert refused == (fail_at is not None)
    calls = setting.streams.calls
    setting.finish()
    setting.require_agreement()
    assert setting.swapper.swaps > 0
    return calls


def test_an_exclusive_store_moves_no_more_than_it_has_spare_places_for() -> None:
    rng, setting = np.random.default_rng(2), Setting(is_exclusive=True)
    sizes = setting.store.blob_bytes
    spare = sum(int(np.sum(sizes == size)) * EXPERTS // 50 for size in np.unique(sizes))
    assert spare < EAGER.most_swaps
    for _ in range(20):
        setting.window(rng, favourite=38)
        assert len(setting.swapper._moves) <= spare


def test_swaps_under_way_keep_their_limit_and_no_copy_is_waited_for() -> None:
    setting = Setting(is_exclusive=False)
    wanted = [ExpertId(*each) for each in np.argwhere(setting.store.resident == 0).tolist()]
    for _ in range(10):
        setting.swapper.before_launch(False)
        setting.card.launch(wanted)
        while setting.streams.main:  # the side road never advances
            assert setting.streams.advance(setting.streams.main)
    assert len(setting.swapper._moves) == ROUNDS_UNDER_WAY * EAGER.most_swaps
    assert setting.swapper.swaps == 0
    assert setting.streams.copied == ROUNDS_UNDER_WAY * EAGER.most_swaps


def test_a_rule_of_no_swaps_counts_and_moves_nothing() -> None:
    setting = Setting(is_exclusive=False, rule=NONE)
    asked = [ExpertId(1, 2), ExpertId(0, 7)]
    for _ in range(5):
        setting.swapper.before_launch(False)
        setting.card.launch(asked)
        setting.card.drain()
    setting.swapper.before_launch(True)
    setting.card.drain()
    setting.swapper.before_launch(True)
    assert {tuple(each): setting.swapper.heat[tuple(each)] for each in np.argwhere(setting.swapper.heat)} == {
        tuple(each): 5.0 for each in asked
    }
    assert setting.streams.copied == 0


def test_on_the_cpu_a_swap_takes_a_few_launches() -> None:
    setting = Setting(is_exclusive=True)
    store, card = setting.store, setting.card
    swapper = Swapper(store, card, card.asked, PlainStreams(), EAGER)
    arrival = ExpertId(*np.argwhere(store.resident == 0)[0].tolist())
    for _ in range(6):
        swapper.before_launch(False)
        card.asked[arrival] += 1
    assert store.resident[arrival] != 0
    assert swapper.swaps >= 1
    setting.require_agreement()


def test_closing_waits_for_copies_and_windows() -> None:
    rng, setting = np.random.default_rng(4), Setting(is_exclusive=False)
    while not setting.streams.side:
        setting.window(rng, favourite=38)
    setting.swapper.close()
    assert not setting.streams.side
    assert not setting.streams.main
    assert setting.swapper._moves == []
    setting.card.drain()
    setting.card.require_whole()


class CopiesThatEndWhileLookedAt(PlainStreams):
    """Copies beside windows stay under way until `may_end`; then all of them end behind the first look at one."""

    def __init__(self) -> None:
        self.may_end = False
        self.taken, self.ended = 0, 0

    def mark_side(self) -> Mark:
        self.taken += 1
        return MarkOfACopy(self, self.taken)


class MarkOfACopy:
    """The `number`th that was taken."""

    def __init__(self, road: CopiesThatEndWhileLookedAt, number: int) -> None:
        self.road, self.number = road, number

    def is_passed(self) -> bool:
        found = self.number <= self.road.ended
        if self.road.may_end:
            self.road.ended = self.road.taken
        return found


def test_a_victim_that_comes_back_waits_until_it_is_saved_itself() -> None:
    setting, road = Setting(is_exclusive=True), CopiesThatEndWhileLookedAt()
    asked, rule = setting.card.asked, SwapRule(every=1, most_swaps=1, margin=0.5, decay=1, again=1)
    swapper = Swapper(setting.store, setting.card, asked, road, rule)
    away, victim = (ExpertId(*np.argwhere(held)[0].tolist()) for held in (setting.store.in_ram, setting.store.resident))
    wanted = _given(setting.store.seat(victim)).clone()
    for expert in (away, victim):  # the second has given way for the first by then, and is not saved
        asked[expert] += 8
        for _ in range(3):
            swapper.before_launch(False)
    assert (len(swapper._moves), swapper.swaps) == (2, 0)
    road.may_end = True
    for _ in range(8):
        swapper.before_launch(False)
    assert (len(swapper._moves), swapper.swaps) == (0, 2)
    assert torch.equal(_given(setting.store.seat(victim)), wanted)


def _given(memory: torch.Tensor | None) -> torch.Tensor:
    assert memory is not None
    return memory


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_what_a_prompt_ended_with_takes_seats_that_nobody_asks_for(is_exclusive: bool) -> None:
    """Residents that windows ask for stay; a rule of no swaps moves nothing."""
    rule = SwapRule(every=1, most_swaps=6)
    setting = Setting(is_exclusive, rule)
    hot = np.flatnonzero(setting.store.resident[0])[:5].tolist()
    missing = np.flatnonzero(setting.store.resident[0] == 0)[:8].tolist()

    def windows(count: int) -> None:
        for _ in range(count):
            setting.swapper.before_launch(False)
            setting.card.launch([ExpertId(0, expert) for expert in hot])
            setting.card.drain()

    windows(6)
    heat = setting.swapper.heat.copy()
    asked = np.zeros((LAYERS, EXPERTS), np.int32)
    asked[0, missing[:6]], asked[0, missing[6:]] = 40, 1  # the last two were hardly asked for
    setting.swapper.note_prompt(asked)
    windows(16)  # an exclusive store has room for two swaps at once
    setting.finish()
    resident = setting.store.resident[0]
    assert resident[missing[:6]].all() and resident[hot].all() and not resident[missing[6:]].any()
    assert np.array_equal(setting.swapper.heat[:, missing], heat[:, missing])
    setting.require_agreement()
    still = Setting(is_exclusive, NONE)
    before = still.store.resident.copy()
    still.swapper.note_prompt(asked)
    still.finish()
    assert np.array_equal(still.store.resident, before)
