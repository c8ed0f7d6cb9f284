"""Where not all experts fit on the card: seats get what is left, main memory the rest; or a sentence says what fits."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine.memory_plan import CHUNKS, Budget, Growth, MemoryPlan, Place, PlanRequest
from strata.engine.placement import next_smaller, plan_again, plan_memory, recheck
from strata.engine.plan_parts import EXPERT_SEATS, EXPERTS, READ_EXPERTS
from strata.engine.plan_refusal import fits_with_less
from strata.engine.tier_placement import CONTEXT_UNASKED, fewer_seats
from strata.experts.cache import place_hottest
from strata.experts.store_plan import StoreLayer, StorePlan
from strata.models.needs import Part
from tests.engine.test_placement import EXPERTS as EXPERTS_IN_ALL
from tests.engine.test_placement import GIB, MIB, STATE, WEIGHTS, request, sizes
from tests.experts.test_pool import BY_NAME, blob_layout

ONE = 60 * GIB // EXPERTS_IN_ALL


def tiered(card: float = 40, ram: float = 128, **changes: object) -> PlanRequest:
    """60 GiB of experts and a card that does not hold all of them."""
    return request(card, ram, **changes)


def numbers(plan: MemoryPlan) -> tuple[int, int, int | None, str | None]:
    return plan.slots, plan.context, plan.seats, plan.refusal


def test_seats_get_what_is_left_and_main_memory_holds_every_expert() -> None:
    plan = plan_memory(tiered())
    assert (plan.slots, plan.context, plan.refusal) == (1, CONTEXT_UNASKED, None)
    on_card, in_ram = sizes(plan, Place.CARD), sizes(plan, Place.RAM)
    assert (on_card[EXPERT_SEATS], in_ram[EXPERTS]) == (plan.seats, 60 * GIB)
    assert Part.ROUTED.value not in on_card | in_ram
    assert 0 <= plan.left(Place.CARD) < ONE  # one seat more would not fit
    assert plan.seats is not None
    assert plan.seats % ONE == 0
    assert plan.seat_share == plan.seats / (60 * GIB)
    assert plan.used(Place.CARD) + plan.left(Place.CARD) + plan.request.reserve == 40 * GIB


def test_all_experts_on_the_card_is_what_it_was_without_tiers() -> None:
    for card in (70, 80, 95):
        whole = plan_memory(request(card, blobs=()))
        plan = plan_memory(request(card, ram=128))
        assert plan.parts == whole.parts
        assert (plan.seats, plan.seat_share) == (None, 1.0)


@pytest.mark.parametrize(
    ("card", "slots", "context"),
    [
        (8.0, 1, 4096),  # a quarter of a GiB is less than one conversation's state: the shortest
        (12.0, 1, 12_800),  # in a quarter of 5 GiB
        (24.0, 1, 32_768),
        (56.0, 2, 32_768),  # both 4.75 GiB, a tenth of 49
    ],
)
def test_unasked_conversations_are_modest(card: float, slots: int, context: int) -> None:
    plan = plan_memory(tiered(card))
    assert (plan.slots, plan.context, plan.refusal) == (slots, context, None)
    free = (card - 7) * GIB  # a GiB of reserve, 5 of weights, one of windows
    grown = plan.used(Place.CARD) - 6 * GIB - (plan.seats or 0)
    assert context == 4096 or grown <= free / 4
    if slots > 1:
        assert slots * STATE.at(context) <= free / 10


def test_what_is_asked_for_is_given_and_seats_get_the_rest() -> None:
    plan = plan_memory(tiered(asked_slots=4, asked_context=50_000))
    assert (plan.slots, plan.context, plan.refusal) == (4, 50_000, None)
    assert 0 <= plan.left(Place.CARD) < ONE
    more = plan_memory(tiered(asked_slots=2))
    assert (more.slots, more.refusal) == (2, None)
    assert more.context == CONTEXT_UNASKED


def test_main_memory_bounds_the_slots() -> None:
    ample, tight = (plan_memory(tiered(56, ram)) for ram in (128, 60 + 24 + 0.5 + 1))
    assert (ample.slots, tight.slots, tight.refusal) == (2, 1, None)


@pytest.mark.parametrize("cache", [0, 1, 20])
def test_a_cache_that_is_asked_for_is_that_large(cache: int) -> None:
    plan = plan_memory(tiered(asked_cache=cache * GIB))
    assert plan.refusal is None
    assert plan.seats == cache * GIB // ONE * ONE
    assert plan.context > CONTEXT_UNASKED  # nothing else wants the room
    assert (EXPERT_SEATS in sizes(plan, Place.CARD)) == (cache > 0)
    on_large_card = plan_memory(request(95, 128, asked_cache=cache * GIB))  # which would hold all
    assert on_large_card.seats == plan.seats


def test_a_cache_for_all_experts_is_all_experts() -> None:
    assert plan_memory(request(80, asked_cache=60 * GIB)).seats is None
    assert plan_memory(request(80, asked_cache=300 * GIB)).refusal is None


def test_a_cache_that_is_too_large_is_refused_with_what_fits() -> None:
    for cache in (35, 60, 100):
        refusal = plan_memory(tiered(asked_cache=cache * GIB)).refusal
        assert refusal is not None
        assert refusal.startswith(f"setting cache_gib: {cache} does not work")
        fitting = float(refusal.partition(" tokens ")[2].partition(" GiB")[0])
        assert plan_memory(tiered(asked_cache=int((fitting - 0.1) * GIB))).refusal is None
        assert plan_memory(tiered(asked_cache=int((fitting + 0.1) * GIB))).refusal is not None


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 300), st.booleans(), st.integers(0, 1 << 30))
def test_a_plan_has_the_spare_places_that_the_store_takes(
    layers: int, experts: int, seats: int, is_mixed: bool, seed: int
) -> None:
    """Of one size exactly; of several no fewer, whoever has the seats."""
    small, large = (blob_layout(BY_NAME[code], BY_NAME[code], 256, 64) for code in ("q4_0", "q8_0"))
    kinds = [large if is_mixed and index % 2 else small for index in range(layers)]
    each = [kind.total_bytes for kind in kinds]
    heat = np.random.default_rng(seed).random((layers, experts))
    has_seat = place_hottest(heat, each, seats * sum(each))
    stored = tuple(StoreLayer(f"model.layers.{index}.mlp.", kind) for index, kind in enumerate(kinds))
    store = StorePlan(stored, has_seat, is_exclusive=True)
    taken = sum(size * places for size, places in store.places().items())
    spare = taken - sum(size * int((~row).sum()) for size, row in zip(each, has_seat, strict=True))
    blobs = tuple((size, experts * each.count(size)) for size in dict.fromkeys(each))
    plan = tiered(blobs=blobs, is_exclusive=True)
    planned = plan.spare_bytes(sum(size * int(row.sum()) for size, row in zip(each, has_seat, strict=True)))
    assert planned == spare if len(blobs) == 1 else planned >= spare


def test_exclusive_experts_lie_in_one_place_but_for_a_few_spare_ones() -> None:
    plan = plan_memory(tiered(is_exclusive=True))
    assert plan.seats is not None
    assert sizes(plan, Place.RAM)[EXPERTS] == 60 * GIB - plan.seats + 64 * ONE
    assert (sizes(plan, Place.RAM)[EXPERTS] + plan.seats) / (60 * GIB) <= 1.05
    without = plan_memory(tiered(is_exclusive=True, asked_cache=0))
    assert sizes(without, Place.RAM)[EXPERTS] == 60 * GIB


def test_too_little_main_memory_is_refused_and_told_of_exclusive_placement_where_that_fits() -> None:
    refusal = plan_memory(tiered(40, 64)).refusal
    assert refusal is not None
    assert "main memory needs 8" in refusal
    assert "experts 60.0, n-gram table 24.0" in refusal
    assert refusal.endswith("with `--resident`, which keeps no expert in both, it fits")
    assert plan_memory(tiered(40, 64, is_exclusive=True)).refusal is None
    for is_exclusive in (False, True):
        short = plan_memory(tiered(40, 40, is_exclusive=is_exclusive)).refusal
        assert short is not None
        assert ("with `--resident` and experts of at most" in short) == (not is_exclusive)
        bits = float(short.rpartition("at most ")[2].partition(" bits a weight it would fit")[0])
        smaller = {**WEIGHTS, Part.ROUTED: int((bits - 0.1) * 120 * GIB / 8)}
        assert plan_memory(tiered(40, 40, is_exclusive=True, weights=smaller)).refusal is None
    nothing = plan_memory(tiered(40, 20)).refusal
    assert nothing is not None
    assert nothing.endswith("more of it must be free, or ram_gib larger")


def test_slots_and_a_context_that_do_not_fit_beside_any_seat_are_refused_with_what_fits() -> None:
    slots = plan_memory(tiered(asked_slots=32, asked_context=131072)).refusal
    assert slots is not None
    assert slots.startswith("setting slots: 32 does not work")
    assert plan_memory(tiered(asked_slots=int(slots.partition("so ")[2].partition(" fit")[0]))).refusal is None
    context = plan_memory(tiered(10, asked_context=131072)).refusal
    assert context is not None
    longest = int(context.rpartition("; ")[2].partition(" tokens fit")[0].replace(",", ""))
    assert plan_memory(tiered(10, asked_context=longest)).refusal is None


def test_a_card_with_room_for_all_experts_but_not_for_what_was_asked_keeps_fewer_of_them() -> None:
    assert plan_memory(request(80, 128)).seats is None
    plan = plan_memory(request(80, 128, asked_slots=8, asked_context=32_768))
    assert (plan.slots, plan.context, plan.refusal) == (8, 32_768, None)
    assert plan.seats is not None
    alone = plan_memory(request(80, 64, asked_slots=8, asked_context=32_768))  # no main memory for the experts
    assert alone.refusal is not None
    assert alone.refusal.startswith("setting slots: 8 does not work")
    assert fits_with_less(alone)


def test_after_the_weights_are_written_seats_give_way_first() -> None:
    plan = plan_memory(tiered())
    assert plan.seats is not None
    left = 40 * GIB - 5 * GIB - plan.seats
    assert numbers(recheck(plan, left)) == numbers(plan)
    assert numbers(recheck(plan, 60 * GIB)) == numbers(plan)
    assert numbers(recheck(plan, left - 500 * MIB)) == numbers(plan), "half of the reserve may be gone"
    fewer = recheck(plan, left - 3 * GIB)
    assert (fewer.slots, fewer.context, fewer.refusal) == (plan.slots, plan.context, None)
    assert fewer.seats is not None
    assert 3 * GIB - ONE <= plan.seats - fewer.seats <= 3 * GIB + ONE
    assert recheck(plan, left - 40 * GIB).refusal is not None


def test_where_all_seats_are_not_enough_conversations_give_way_behind_them() -> None:
    plan = plan_memory(tiered())
    assert plan.seats is not None
    gone = plan.seats + 500 * MIB  # 500 MiB more than the seats
    smaller = recheck(plan, 40 * GIB - 5 * GIB - plan.seats - gone)
    assert (smaller.seats, smaller.refusal) == (0, None)
    assert (smaller.slots, smaller.context) < (plan.slots, plan.context)


@given(
    st.floats(8, 95),
    st.floats(0, 60),
    st.sampled_from([None, 0, 20 * GIB]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, 8192, 65_536]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_plan_for_less_memory_has_no_more_slots_and_no_longer_context(
    card: float, gone: float, cache: int | None, slots: int | None, context: int | None, is_exclusive: bool
) -> None:
    plan = plan_memory(
        tiered(card, asked_cache=cache, asked_slots=slots, asked_context=context, is_exclusive=is_exclusive)
    )
    smaller = plan_again(plan, int((card - gone) * GIB))
    assert smaller.slots <= plan.slots
    assert smaller.context <= plan.context
    assert (smaller.seats or 0) <= (plan.seats or 0)
    assert (smaller.seats is None) == (plan.seats is None)


def test_where_all_seats_are_not_enough_fewer_slots_make_no_context_longer() -> None:
    plan = plan_memory(tiered(56))
    assert (plan.slots, plan.context) == (2, CONTEXT_UNASKED)
    assert plan.seats is not None
    smaller = plan_again(plan, 56 * GIB - plan.seats - 2 * GIB)
    assert numbers(smaller) == (1, CONTEXT_UNASKED, 0, None)


def test_seats_that_were_asked_for_do_not_give_way() -> None:
    plan = plan_memory(tiered(asked_cache=20 * GIB))
    left = 40 * GIB - 5 * GIB - 20 * GIB
    smaller = recheck(plan, left - 8 * GIB)
    assert (smaller.seats, smaller.refusal) == (plan.seats, None)
    assert (smaller.slots, smaller.context) < (plan.slots, plan.context)
    assert fewer_seats(plan, 0) is None
    following = next_smaller(plan)
    assert following is not None
    assert following.seats == plan.seats


def test_exclusive_seats_do_not_give_way_where_main_memory_is_full() -> None:
    plan = plan_memory(tiered(is_exclusive=True))
    full = replace(plan.request.budgets.ram, free=plan.used(Place.RAM) + 100 * MIB)
    plan = replace(plan, request=replace(plan.request, budgets=replace(plan.request.budgets, ram=full)))
    assert plan.seats is not None
    assert fewer_seats(plan, plan.seats - 40 * ONE) is not None
    assert fewer_seats(plan, plan.seats - 41 * ONE) is None


def test_running_out_of_memory_gives_up_seats_then_slots_then_context() -> None:
    plan: MemoryPlan | None = plan_memory(tiered(56))
    seen: list[tuple[int, int, int]] = []
    while plan is not None:
        assert plan.seats is not None
        seen.append((plan.seats, plan.slots, plan.context))
        plan = next_smaller(plan)
    assert seen == sorted(seen, reverse=True)
    assert [(slots, context) for seats, slots, context in seen if seats] == [(2, CONTEXT_UNASKED)] * (len(seen) - 5)
    assert seen[-5:] == [(0, 2, 32_768), (0, 1, 32_768), (0, 1, 16_384), (0, 1, 8192), (0, 1, 4096)]
    assert all(before[0] - after[0] >= min(GIB, before[0]) for before, after in pairwise(seen[:-4]))


def test_a_model_without_experts_has_no_seats() -> None:
    dense = {Part.DENSE: 60 * GIB}
    assert plan_memory(request(80, weights=dense, blobs=())).seats is None
    refused = plan_memory(request(40, weights=dense, blobs=(), asked_cache=0))
    assert refused.refusal is not None
    assert refused.seats is None
    assert WEIGHTS[Part.ROUTED] == 60 * GIB


def filed(card: float, ram: float, **changes: object) -> PlanRequest:
    """Experts may stay in files; a window asks for 320 of a layer, 0.78 GiB."""
    return tiered(card, ram, **{"is_filed": True, "filing_problem": None, "most_asked": 320} | changes)


def test_experts_stay_in_files_only_where_main_memory_has_no_room_for_them() -> None:
    for ram in (128, 64):  # as copies of what the card holds, and as what it does not
        plan = plan_memory(filed(40, ram))
        assert (plan.request.is_filed, plan.refusal) == (False, None)
        assert plan.request.is_exclusive == (ram == 64)
    plan = plan_memory(filed(40, 40))
    assert (plan.request.is_filed, plan.request.is_exclusive, plan.refusal) == (True, True, None)
    assert plan_memory(filed(40, 40, is_filed=False)).refusal is not None


def test_experts_in_files_leave_an_eighth_of_main_memory_and_take_the_rest_for_those_that_are_read_and_kept() -> None:
    plan = plan_memory(filed(40, 40))
    assert plan.seats is not None
    in_ram = sizes(plan, Place.RAM)
    spare = 64 * ONE
    left = 40 * GIB - plan.used(Place.RAM)
    assert 5 * GIB <= left < 5 * GIB + 2 * ONE
    kept, read = in_ram[EXPERTS] - spare, in_ram[READ_EXPERTS]
    assert 0.24 < kept / (kept + read) <= 0.25
    asked = plan_memory(filed(40, 40, budgets=replace(plan.request.budgets, ram=Budget(64 * GIB, 64 * GIB, 40 * GIB))))
    assert 0 <= asked.left(Place.RAM) < 2 * ONE, "the user said how much there is"
    fewer = fewer_seats(plan, plan.seats // 2)
    assert fewer is not None
    assert fewer.used(Place.RAM) == pytest.approx(plan.used(Place.RAM), abs=2 * ONE)


def test_where_experts_stay_in_files_both_memories_keep_room_for_prompts_in_chunks() -> None:
    chunks = Growth(CHUNKS, Place.CARD, fixed=2 * GIB)
    asked = filed(40, 40)
    reads = replace(asked, growing=(*asked.growing, chunks), chunk_rows=4096, ring_bytes=GIB)
    plan, without = plan_memory(reads), plan_memory(asked)
    assert (plan.request.is_filed, plan.request.chunk_rows) == (True, 4096)
    assert {CHUNKS, "experts on their way"} <= set(sizes(plan, Place.CARD))
    rooms = 2 * GIB // 2  # a third of a GiB each, pinned: the next power of two
    assert sizes(plan, Place.RAM)["experts on their way"] == rooms
    assert plan.seats is not None and without.seats is not None
    assert without.seats - plan.seats == pytest.approx(3 * GIB, abs=2 * ONE)
    all_in_ram = plan_memory(replace(reads, budgets=filed(40, 128).budgets))
    assert (all_in_ram.request.is_filed, all_in_ram.request.chunk_rows) == (False, 4096)
    assert {CHUNKS, "experts on their way"} <= set(sizes(all_in_ram, Place.CARD))


def test_too_little_main_memory_for_experts_in_files_is_refused_with_what_it_takes() -> None:
    short = plan_memory(filed(40, 10))
    assert short.refusal is not None
    assert sizes(short, Place.RAM)[READ_EXPERTS] == 320 * ONE
    assert "even if experts stay in its files: main memory needs" in short.refusal
    assert "n-gram table 24.0" in short.refusal
    assert short.refusal.endswith(
        "experts that are read take what the 320 take that a window may ask of one layer: more of it must be free, or "
        "ram_gib larger"
    )
    needed = short.used(Place.RAM) / GIB
    assert plan_memory(filed(40, needed - 0.01)).refusal is not None
    assert plan_memory(filed(40, needed + 0.01)).refusal is None


def test_experts_in_files_are_told_of_where_they_help() -> None:
    hint = "with `--mmap`, which leaves experts in the model's files until they are asked for, it fits"
    cases: list[dict[str, object]] = [{}, {"is_exclusive": True}, {"asked_cache": 20 * GIB}]
    for changes in cases:
        told = plan_memory(filed(40, 40, is_filed=False, **changes)).refusal
        assert told is not None
        assert hint in told
        assert "bits a weight it would fit" in told
        assert plan_memory(filed(40, 40, **changes)).refusal is None
    for unhelpful in ({"filing_problem": "there is no GGUF file"}, {"most_asked": 24 * 1024}):
        silent = plan_memory(filed(40, 40, is_filed=False, **unhelpful)).refusal
        assert silent is not None
        assert "mmap" not in silent
    useless = plan_memory(filed(40, 40, filing_problem="there is no GGUF file")).refusal
    assert useless is not None
    assert useless.endswith("; `--mmap` changes nothing: there is no GGUF file")
