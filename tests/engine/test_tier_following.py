"""Seats and the share follow windows as settings and memory allow: what is set, measured, moved, and left alone."""

import gc
import logging
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from strata.engine import tier_following
from strata.engine.stage_loading import LoadedStage
from strata.engine.tier_following import end_behind, follow_windows
from strata.errors import EngineError
from strata.experts.share import FixedCosts, Rates, fixed_share_table, share_table
from strata.experts.streams import PlainStreams
from strata.models.base import Segment
from strata.native import library
from strata.settings import EngineSettings
from tests.engine.test_tier_loading import CPU, PINNING, loaded, planned, wanted

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
RATES = Rates(100e9, 50e9, 80e9, 45e9)
CUDA = torch.device("cuda", 0)


def in_tiers(share: float = 0.5, **changes: Any) -> LoadedStage:
    return loaded("qwen3_moe", planned("qwen3_moe", share), replace(CPU, **changes))


def on_pretended_card(found: LoadedStage) -> Any:
    """The stage of a model, if its device is asked for, on a card; what it runs is on the CPU."""
    stage = found.model.stage

    class OnCard:
        device = CUDA
        __getattr__ = staticmethod(partial(getattr, stage))

    return OnCard()


def set_share(found: LoadedStage) -> list[int]:
    assert found.tiers is not None
    return found.tiers.tiers.tables[0].share.tolist()


def read(found: LoadedStage, times: int) -> torch.Tensor:
    model = found.model
    for _ in range(times):
        state = model.new_state()
        logits = model.read([Segment(state, torch.arange(40) % 96)]).logits
        for position in range(12):
            window = model.window([Segment(state, torch.tensor([position]))])
            model.commit(window, [1])
        model.release(state)
    return logits


@pytest.mark.parametrize("swaps", [True, False])
def test_seats_follow_what_is_asked_for_unless_swaps_are_off(swaps: bool) -> None:
    found = in_tiers()
    assert found.tiers is not None
    swapper = follow_windows(found.tiers, found.model.stage.stages[0], EngineSettings(expert_swaps=swaps))
    assert torch.equal(read(found, 4), wanted("qwen3_moe"))
    assert (swapper.swaps > 0) == swaps
    assert swapper.heat.sum() > 0  # for a profile it counts in any case


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_that_is_asked_for_is_set(share: float) -> None:
    found = in_tiers()
    assert found.tiers is not None
    follow_windows(found.tiers, found.model.stage.stages[0], EngineSettings(pcie_share=share))
    table = set_share(found)
    assert table == fixed_share_table(share, len(table) - 1).tolist()
    assert torch.equal(read(found, 1), wanted("qwen3_moe"))
    assert (found.tiers.tiers.counts().in_place > 0) == (share > 0)


def test_with_several_groups_the_cards_own_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_tiers(pinning=lambda: PINNING)
    assert found.tiers is not None
    launched: list[int] = []

    class Clocked:
        def __init__(self, read: Callable[[], None], size: int, _: Any) -> None:
            self.read, self.size = read, size

        def start(self, size: int) -> None:
            launched.append(size)
            self.read()

        def wait(self) -> tuple[int, float]:
            return 1, 0.3

    assert len(found.tiers.tiers.windows) == 2
    monkeypatch.setattr(tier_following, "streams_of", lambda *_: PlainStreams())
    monkeypatch.setattr(tier_following, "reading_in_place", lambda *_: None)
    monkeypatch.setattr(tier_following, "replay_of", lambda program, _: lambda: [each.run() for each in program])
    monkeypatch.setattr(tier_following, "CardSide", Clocked)
    monkeypatch.setattr(tier_following, "measure_rates", lambda *_: RATES)
    monkeypatch.setattr(tier_following, "measure_costs", lambda rates, *_: (rates, FixedCosts()))
    follow_windows(found.tiers, on_pretended_card(found), EngineSettings())
    table, most = set_share(found), len(set_share(found)) - 1
    size = round(float(found.tiers.store.blob_bytes.mean()))
    card_s = 0.3 / tier_following.TIMED_WINDOWS / found.model.stage.stages[0].model.sparse_layers
    assert table == share_table(RATES, size, most, card_s=card_s).tolist() == [0] * (most + 1)
    assert launched == [tier_following.TIMED_WINDOWS] * 2
    assert torch.equal(read(found, 1), wanted("qwen3_moe")), "nothing of a slot was changed"


@pytest.mark.parametrize(("is_pinned", "asked"), [(True, None), (True, 0.3), (False, None)])
def test_a_card_that_reads_main_memory_has_both_sides_measured(
    monkeypatch: pytest.MonkeyPatch, is_pinned: bool, asked: float | None
) -> None:
    found = in_tiers(pinning=lambda: PINNING if is_pinned else None)
    assert found.tiers is not None
    measured: list[int] = []
    monkeypatch.setattr(tier_following, "streams_of", lambda *_: PlainStreams())
    monkeypatch.setattr(tier_following, "reading_in_place", lambda *_: None)
    monkeypatch.setattr(tier_following, "CardSide", lambda read, size, _: measured.append(size))
    monkeypatch.setattr(tier_following, "_card_seconds", lambda _: 0.0)
    monkeypatch.setattr(tier_following, "measure_rates", lambda *_: RATES)
    costs = FixedCosts(30e-6)
    monkeypatch.setattr(tier_following, "measure_costs", lambda rates, *_: (rates, costs))
    swapper = follow_windows(found.tiers, on_pretended_card(found), EngineSettings(pcie_share=asked))
    table, most = set_share(found), len(set_share(found)) - 1
    size = round(float(found.tiers.store.blob_bytes.mean()))
    if is_pinned and asked is None:
        (read_bytes,) = measured
        assert read_bytes > 0
        assert table == share_table(RATES, size, most, costs).tolist()
    else:
        assert measured == []
        assert table == fixed_share_table(asked or 0.0, most).tolist()
    read(found, 4)
    assert (swapper.swaps > 0) == is_pinned  # copies beside windows need pinned memory


def test_a_card_without_memory_to_measure_with_is_told_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    found = in_tiers(pinning=lambda: PINNING)
    assert found.tiers is not None
    monkeypatch.setattr(tier_following, "streams_of", lambda *_: PlainStreams())
    monkeypatch.setattr(tier_following, "reading_in_place", refused)
    with pytest.raises(EngineError, match=r"ran out of memory while it was measured .* pcie_share"):
        follow_windows(found.tiers, on_pretended_card(found), EngineSettings())


@pytest.mark.parametrize(("is_exclusive", "least", "most"), [(False, 1.4, 1.6), (True, 1.0, 1.1)])
def test_the_log_says_how_much_both_memories_hold(
    is_exclusive: bool, least: float, most: float, caplog: pytest.LogCaptureFixture
) -> None:
    found = loaded("qwen3_moe", planned("qwen3_moe", 0.5, is_exclusive=is_exclusive), CPU)
    assert found.tiers is not None
    with caplog.at_level(logging.INFO, "strata.experts"):
        follow_windows(found.tiers, found.model.stage.stages[0], EngineSettings())
    times = re.search(r"in main memory, together ([0-9.]+) times their size", caplog.text)
    assert times is not None
    assert least <= float(times[1]) <= most


def test_memory_and_threads_are_free_once_the_model_is_gone() -> None:
    found = in_tiers()
    assert found.tiers is not None
    swapper = follow_windows(found.tiers, found.model.stage.stages[0], EngineSettings())
    heat: list[np.ndarray] = []
    end_behind(found.model, found.tiers, swapper, heat.append)
    read(found, 1)
    gc.collect()
    memory, tiers, threads = (weakref.ref(each) for each in (found.tiers.store, found.tiers.tiers, found.tiers.pool))
    gc.disable()
    try:
        del found, swapper
        assert (memory(), tiers(), threads()) == (None, None, None)
    finally:
        gc.enable()
    assert len(heat) == 1
    assert heat[0].sum() > 0


def test_memory_and_threads_are_free_even_if_nobody_takes_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_tiers()
    told: list[str] = []
    assert found.tiers is not None
    swapper = follow_windows(found.tiers, found.model.stage.stages[0], EngineSettings())

    def refuse(heat: np.ndarray) -> None:
        raise MemoryError("no room for a profile")

    end_behind(found.model, found.tiers, swapper, refuse)
    memory, tiers = weakref.ref(found.tiers.store), found.tiers.tiers
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: told.append(str(failure.exc_value)))
    del found, swapper
    gc.collect()
    assert told == ["no room for a profile"]
    with pytest.raises(EngineError, match="stopped"):
        tiers.windows[0].launched()
    del tiers
    gc.collect()
    assert memory() is None
