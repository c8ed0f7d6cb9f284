"""What goes where, how many conversations fit, and what is said when they do not."""

from dataclasses import replace

import pytest

from strata.engine.memory_plan import (
    CHUNKS,
    Budget,
    Budgets,
    Growth,
    MemoryPlan,
    Place,
    PlanRequest,
    budgets_of,
    conversations,
)
from strata.engine.placement import full_slot_bytes, next_smaller, plan_memory, recheck, slots_that_fit
from strata.errors import SettingsError
from strata.hardware import GpuFacts, MemoryFacts
from strata.models.needs import Part, StateBytes

GIB = 1 << 30
EXPERTS = 24 * 1024
MIB = 1 << 20
BLOBS = ((5 * MIB // 2, EXPERTS),)
STATE = StateBytes(fixed=128 * MIB, per_token=64 * 1024)  # a full slot of 16,384 tokens: 1 GiB of cells
CHECKPOINTS = Growth("checkpoints", Place.RAM, per_slot=5 * STATE.fixed)
WEIGHTS = {Part.ROUTED: 60 * GIB, Part.DENSE: 4 * GIB, Part.EMBEDDING: GIB, Part.NGRAM: 24 * GIB, Part.MTP: 0}


def request(card: float = 80, ram: float = 64, **changes: object) -> PlanRequest:
    """A model of 60 GiB of experts in 4 bits, whose windows take a GiB and 4 KiB a position."""
    budgets = Budgets("a card", Budget(int(96 * GIB), int(card * GIB)), Budget(64 * GIB, int(ram * GIB)))
    windows = Growth("windows", Place.CARD, fixed=GIB, per_slot=16 * MIB, per_position=4096)
    growing = (*conversations(STATE), CHECKPOINTS, windows)
    made = PlanRequest(budgets, WEIGHTS, 120 * GIB, growing, 131072, 256 * MIB, blobs=BLOBS)
    return replace(made, **changes)  # type: ignore[arg-type]


def sizes(plan: MemoryPlan, place: Place) -> dict[str, int]:
    return {part.name: part.size for part in plan.parts if part.place is place}


def test_a_full_slot_holds_its_cells_its_state_its_marks_and_its_checkpoints() -> None:
    assert full_slot_bytes(StateBytes(fixed=100, per_token=2.0), 1000, 500) == 2000 + 100 + 2 * 100 + 500


@pytest.mark.parametrize(("free", "slots"), [(0, 1), (1, 1), (2, 2), (4, 4), (100, 4)])
def test_unasked_there_are_as_many_as_fit_up_to_four(free: int, slots: int) -> None:
    assert slots_that_fit(None, GIB, free * GIB, 4096) == slots


@pytest.mark.parametrize(("asked", "free"), [(1, 0), (1, 1), (6, 6), (32, 64)])
def test_what_fits_is_given(asked: int, free: int) -> None:
    assert slots_that_fit(asked, GIB, free * GIB, 4096) == asked


def test_more_than_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(SettingsError, match=r"slots: 9 .* 262,144 tokens takes 2\.00 GiB and 5\.0 GiB.* so 2 fit"):
        slots_that_fit(9, 2 * GIB, 5 * GIB, 262144)


def test_experts_dense_parts_and_embedding_lie_on_the_card_and_a_large_table_in_ram() -> None:
    plan = plan_memory(request())
    on_card, in_ram = sizes(plan, Place.CARD), sizes(plan, Place.RAM)
    assert [on_card[part.value] for part in (Part.ROUTED, Part.DENSE, Part.EMBEDDING)] == [60 * GIB, 4 * GIB, GIB]
    assert (in_ram[Part.NGRAM.value], in_ram["checkpoints"]) == (24 * GIB, 5 * 128 * MIB)
    assert Part.MTP.value not in on_card | in_ram
    assert plan.refusal is None
    small = plan_memory(request(weights={**WEIGHTS, Part.NGRAM: 200 * MIB}))
    assert Part.NGRAM.value in sizes(small, Place.CARD)


def test_the_parts_and_what_is_left_add_up_to_the_budget() -> None:
    plan = plan_memory(request())
    assert plan.used(Place.CARD) + plan.left(Place.CARD) + plan.request.reserve == 80 * GIB
    assert plan.used(Place.RAM) + plan.left(Place.RAM) == 64 * GIB
    assert plan.left(Place.CARD) >= 0
    assert sizes(plan, Place.CARD)["state"] == plan.slots * STATE.at(plan.context)
    assert sizes(plan, Place.CARD)["marks to go back to"] == 2 * plan.slots * STATE.fixed


@pytest.mark.parametrize(("card", "slots", "context"), [(76.5, 1, 131072), (88, 2, 131072), (95, 3, 131072)])
def test_the_whole_context_comes_before_more_slots(card: float, slots: int, context: int) -> None:
    plan = plan_memory(request(card))
    assert (plan.slots, plan.context, plan.refusal) == (slots, context, None)


def test_a_smaller_card_shortens_the_context_as_little_as_it_must() -> None:
    plan = plan_memory(request(card=70))
    assert (plan.slots, plan.refusal) == (1, None)
    assert 4096 <= plan.context < 131072
    assert plan.context % 512 == 0
    assert 0 <= plan.left(Place.CARD) < 512 * (64 * 1024 + 4096) + 3  # one step more would not fit


def test_asked_slots_share_the_context_and_an_asked_context_leaves_room_for_slots() -> None:
    eight = plan_memory(request(asked_slots=8))
    assert (eight.slots, eight.refusal) == (8, None)
    assert eight.context < 131072
    short = plan_memory(request(asked_context=1000))
    assert (short.slots, short.context, short.refusal) == (4, 1000, None)


def test_a_model_that_fits_nowhere_is_refused_with_its_plan_and_with_the_bits_that_fit() -> None:
    plan = plan_memory(request(card=40, ram=40))
    assert plan.refusal is not None
    assert "does not fit on a card with main memory beside it" in plan.refusal
    assert "of 60.0 GiB of experts" in plan.refusal
    assert "n-gram table 24.0" in plan.refusal
    bits = float(plan.refusal.rpartition("at most ")[2].partition(" bits")[0])
    fitting = request(
        card=40, ram=40, is_exclusive=True, weights={**WEIGHTS, Part.ROUTED: int((bits - 0.1) * 120 * GIB / 8)}
    )
    assert plan_memory(fitting).refusal is None
    assert plan.left(Place.RAM) < 0 <= plan.left(Place.CARD)


@pytest.mark.parametrize("blobs", [(), BLOBS])
def test_a_card_that_is_too_small_without_any_expert_is_told_what_would_hold_it(
    blobs: tuple[tuple[int, int], ...],
) -> None:
    refusal = plan_memory(request(card=4, blobs=blobs)).refusal
    assert refusal is not None
    # 5 GiB, 0.625 of state, 1.03 of windows and 1 of reserve; and 60 of experts that main memory does not take
    assert refusal.endswith(f"a card with {7.7 if blobs else 67.7} GiB free would hold it")
    assert ("even with all experts in main memory" in refusal) == bool(blobs)


@pytest.mark.parametrize(("card", "asked"), [(8.5, {}), (12, {"asked_slots": 2, "asked_context": 32768})])
def test_a_card_that_only_chunks_are_too_much_for_is_told_to_read_in_windows(
    card: float, asked: dict[str, int]
) -> None:
    windows = request(card=card, ram=100, **asked)
    chunks = Growth(CHUNKS, Place.CARD, fixed=2 * GIB)
    reads = replace(windows, growing=(*windows.growing, chunks), chunk_rows=8192, ring_bytes=GIB // 2)
    refusal = plan_memory(reads).refusal
    assert refusal is not None and plan_memory(windows).refusal is None
    assert refusal.endswith(
        "setting chunk_rows: 8,192 rows of a prompt at once take 2.5 GiB of it: fewer may fit, and with gpu_reads "
        "windows, which reads prompts more slowly, it fits"
    )
    refusal = plan_memory(replace(reads, budgets=request(card=4).budgets)).refusal
    assert refusal is not None and "chunk_rows" not in refusal


def test_slots_and_contexts_that_do_not_fit_are_refused_with_what_fits() -> None:
    slots = plan_memory(request(asked_slots=32, asked_context=131072)).refusal
    assert slots is not None
    assert slots.startswith("setting slots: 32 does not work: a conversation of 131,072 tokens takes 8.39 GiB")
    assert "so 1 fit" in slots
    context = plan_memory(request(card=70, asked_context=131072)).refusal
    assert context is not None
    longest = int(context.rpartition("; ")[2].partition(" tokens fit")[0].replace(",", ""))
    assert plan_memory(request(card=70, asked_context=longest)).refusal is None
    assert plan_memory(request(card=70, asked_context=longest + 1)).refusal is not None


def test_main_memory_is_part_of_the_plan() -> None:
    refusal = plan_memory(request(ram=20)).refusal
    assert refusal is not None
    assert "n-gram table 24.0" in refusal
    assert "20.0 GiB may be used" in refusal
    assert plan_memory(request(card=95, ram=26)).slots == 2  # whose checkpoints fit; the card has room for three


def test_after_the_weights_are_written_the_plan_stays_or_shrinks_and_never_grows() -> None:
    plan = plan_memory(request(card=88))
    assert plan.slots == 2
    left = 88 * GIB - 65 * GIB
    same = recheck(plan, left)
    assert (same.slots, same.context, same.refusal) == (plan.slots, plan.context, None)
    assert recheck(plan, 40 * GIB).slots == 2
    smaller = recheck(plan, left - 8 * GIB)
    assert (smaller.slots, smaller.context, smaller.refusal) == (1, 131072, None)
    assert recheck(plan, GIB).refusal is not None


def test_running_out_of_memory_halves_slots_then_context_until_nothing_can_be_given_up() -> None:
    plan = plan_memory(request(card=95, asked_context=None))
    seen = []
    found: MemoryPlan | None = plan
    while found is not None:
        seen.append((found.slots, found.context))
        found = next_smaller(found)
    assert seen == [(3, 131072), (1, 131072), (1, 65536), (1, 32768), (1, 16384), (1, 8192), (1, 4096)]
    assert next_smaller(plan_memory(request(asked_slots=1, asked_context=8192))) is None


def test_budgets_come_from_what_is_free_and_from_the_settings() -> None:
    card, memory = GpuFacts("a card", 24 * GIB, 20 * GIB, (8, 9)), MemoryFacts(64 * GIB, 60 * GIB, 32 * GIB, 30 * GIB)
    free = budgets_of(card, memory, None, None)
    assert (free.card.usable, free.ram.usable) == (20 * GIB, 30 * GIB)
    limited = budgets_of(card, memory, 8, 16)
    assert (limited.card.usable, limited.ram.usable) == (8 * GIB, 16 * GIB)
    assert budgets_of(card, memory, 22, None).card.usable == 20 * GIB  # others hold the rest
    with pytest.raises(SettingsError, match=r"vram_gib: 25 does not work: a card has 24\.0 GiB"):
        budgets_of(card, memory, 25, None)
    with pytest.raises(SettingsError, match=r"ram_gib: 48 does not work: this PC, or its limit, has 32\.0 GiB"):
        budgets_of(card, memory, None, 48)
