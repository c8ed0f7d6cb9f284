"""Experts that stay in the model's file: the same answers whatever memory there is, a sentence if the file fails."""

import os
import shutil
from dataclasses import replace
from functools import cache
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
import torch

from strata.engine.device_windows import windows_ahead
from strata.engine.engine import TokenEngine
from strata.engine.memory_plan import Place
from strata.engine.plan_parts import EXPERTS, READ_EXPERTS, weight_parts
from strata.engine.stage_loading import Card, LoadedStage
from strata.engine.tier_loading import TierWishes
from strata.experts import store_plan
from strata.experts.arena import load_arena
from strata.experts.cache import ExpertId, SwapRule
from strata.experts.sources import open_experts
from strata.experts.store import ExpertStore
from strata.experts.streams import PlainStreams
from strata.experts.swapping import Swapper
from strata.hardware import MemoryFacts
from strata.native import library
from strata.weights.opening import open_model
from tests.engine.filed_stages import filed_plan, filed_stage, whole_plan
from tests.engine.served import SETTINGS, Served, ask
from tests.engine.test_tier_loading import BUDGETS, logits_of
from tests.weights.gguf_models import gguf

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
EAGER = SwapRule(every=1, most_swaps=8, margin=0.1, decay=0.7, again=1.0)
PROMPT, TOKENS = [5, 7, 9, 300, 41], 10


def served(found: LoadedStage, *, is_ahead: bool = True) -> Served:
    ahead = windows_ahead(found.model) if is_ahead else ()
    return Served(TokenEngine(found.model, SETTINGS, ahead=ahead), slots=2)


def store_of(found: LoadedStage) -> ExpertStore:
    assert found.tiers is not None
    return found.tiers.store


def reads_of(found: LoadedStage) -> int:
    """Experts read so far."""
    assert found.model.arrivals == found.model.experts_read["experts"]
    return found.model.arrivals


@cache
def wanted(path: Path) -> tuple[torch.Tensor, list[int]]:
    """Logits and tokens with every expert on the card."""
    whole = filed_stage(path, whole_plan(path))
    assert whole.tiers is None
    return logits_of(whole), served(whole).ask(ask(PROMPT, TOKENS))


@pytest.mark.parametrize(
    ("family", "seats", "in_ram"),
    [("qwen3_moe", 0.0, 0.3), ("qwen3_moe", 0.3, 0.5), ("qwen4_exp", 0.0, 0.6), ("qwen4_exp", 0.3, 0.3)],
)
def test_answers_are_those_of_experts_that_are_all_on_the_card(family: str, seats: float, in_ram: float) -> None:
    path = gguf(family, "Q8_0")
    plan = filed_plan(path, seats, in_ram)
    assert (plan.request.is_filed, plan.refusal) == (True, None)
    found = filed_stage(path, plan)
    logits, tokens = wanted(path)
    assert torch.equal(logits_of(found), logits)
    assert served(found).ask(ask(PROMPT, TOKENS)) == tokens
    store = store_of(found)
    has_seat, has_place = store.resident != 0, store.in_ram != 0
    assert not (has_seat & has_place).any(), "no expert lies in both memories"
    assert (~has_seat & ~has_place).sum() > 0
    assert reads_of(found) > 0
    planned = {part.name: part.size for part in plan.parts if part.place is Place.RAM}
    assert store.ram_bytes <= planned.get(EXPERTS, 0) + planned[READ_EXPERTS] + store.blob_bytes.max()


def test_a_read_expert_stays_for_who_asks_next() -> None:
    path = gguf("qwen3_moe", "Q8_0")
    found = filed_stage(path, filed_plan(path, 0.0, 0.9))
    engine, request = served(found), ask(PROMPT, TOKENS)
    first = engine.ask(request)
    before = reads_of(found)
    assert engine.ask(request) == first
    assert reads_of(found) == before > 0


def test_the_hottest_have_seats_the_next_ones_places_and_the_others_neither() -> None:
    path = gguf("qwen3_moe", "Q8_0")
    heat = np.random.default_rng(0).random(store_of(filed_stage(path, filed_plan(path, 0.3, 0.5))).resident.shape)
    store = store_of(filed_stage(path, filed_plan(path, 0.3, 0.5), wishes=TierWishes(heat, threads=2)))
    has_seat, has_place = store.resident != 0, store.in_ram != 0
    assert has_seat.any() and has_place.any()
    assert heat[has_seat].min() > heat[has_place].max()
    assert heat[has_place].min() > heat[~has_seat & ~has_place].max()


def test_seats_change_between_those_in_memory_and_no_byte_is_lost() -> None:
    path = gguf("qwen3_moe", "Q8_0")
    found = filed_stage(path, filed_plan(path, 0.3, 0.6))
    assert found.tiers is not None
    store, tiers = found.tiers.store, found.tiers.tiers
    in_memory = store.may_move.copy()
    swapper = Swapper(store, tiers, tiers.asked, PlainStreams(), EAGER)
    tiers.follow(swapper.before_launch)
    engine = served(found)
    assert engine.ask(ask(PROMPT, TOKENS)) == wanted(path)[1]
    engine.ask(ask([3, 1, 200], 2 * TOKENS))
    assert engine.ask(ask(PROMPT, TOKENS)) == wanted(path)[1]
    assert swapper.swaps > 2
    assert reads_of(found) > 0
    assert np.array_equal(store.may_move, in_memory), "who is only in the file stays there"
    arena = load_arena(open_experts(open_model(path)), MemoryFacts(1 << 40, 1 << 40), threads=1)
    for layer, expert in np.argwhere(in_memory).tolist():
        where = ExpertId(layer, expert)
        for view in (store.seat(where), store.place(where)):
            if view is not None:
                assert torch.equal(view, arena.blob_bytes(store.layers[layer], expert))


def test_seats_that_are_given_up_are_read_from_the_file_and_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf("qwen3_moe", "Q8_0")
    monkeypatch.setattr(store_plan, "SEAT_PIECE_BYTES", 1)
    plan = filed_plan(path, 0.5, 0.3)
    plan = replace(plan, request=replace(plan.request, asked_cache=None, reserve=0))
    assert plan.seats is not None
    written = sum(part.size for part in weight_parts(plan.request, Place.CARD, plan.seats))
    told = chain([BUDGETS.card.free], repeat(plan.used(Place.CARD) - written - plan.seats // 2))
    found = filed_stage(path, plan, Card(torch.device("cpu"), lambda: next(told), lambda: None))
    assert found.plan.seats is not None
    assert found.plan.seats <= plan.seats // 2
    assert store_of(found).seat_bytes <= found.plan.seats
    assert torch.equal(logits_of(found), wanted(path)[0])


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_file_that_changes_ends_who_needs_it_and_the_engine_goes_on(is_ahead: bool, tmp_path: Path) -> None:
    path = Path(shutil.copy(gguf("qwen3_moe", "Q8_0"), tmp_path / "model.gguf"))
    found = filed_stage(path, filed_plan(path, 0.0, 0.3))
    engine, request, before = served(found, is_ahead=is_ahead), ask(PROMPT, TOKENS), os.stat(path)
    engine.submit(1, request)
    while len(engine.replies[1]) < 3:
        engine.turn()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    engine.submit(2, ask([3, 1, 200], 5))
    engine.finish()
    for number in (1, 2):
        error = engine.ends[number].error
        assert error is not None
        assert error.startswith("experts on the CPU failed in layer ")
        assert error.endswith(" in model.gguf: the model file changed while it was in use: start again")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert engine.ask(request) == wanted(gguf("qwen3_moe", "Q8_0"))[1]
