"""Where a plan leaves n-gram tables: on the card if small, in main memory if it has room, else in their files."""

from dataclasses import replace

import pytest

from strata.cli.memory_plan import plan_as_json, plan_sentence
from strata.engine.memory_plan import GIB, MemoryPlan, Place, TableRoom
from strata.engine.placement import plan_memory, recheck
from strata.models.needs import Part
from tests.engine.test_placement import WEIGHTS, request

TABLE = WEIGHTS[Part.NGRAM]


def planned(ram_gib: int, tables: TableRoom, card_gib: int = 80, **changes: object) -> MemoryPlan:
    """The plan of 60 GiB of experts and a table of 24 GiB, whose files can be read."""
    asked = replace(request(card_gib, ram_gib), tables=tables, table_problem=None)
    return plan_memory(replace(asked, **changes))  # type: ignore[arg-type]


def table_in(plan: MemoryPlan) -> Place | None:
    """Where the table lies; None: in its files."""
    places = [part.place for part in plan.parts if part.name == Part.NGRAM.value]
    return places[0] if places else None


@pytest.mark.parametrize(
    ("ram_gib", "tables", "place"),
    [
        (64, TableRoom.AUTO, Place.RAM),
        (16, TableRoom.AUTO, None),
        (64, TableRoom.MEMORY, Place.RAM),
        (64, TableRoom.FILE, None),
    ],
)
def test_a_large_table_lies_as_the_setting_and_main_memory_say(
    ram_gib: int, tables: TableRoom, place: Place | None
) -> None:
    plan = planned(ram_gib, tables)
    assert plan.refusal is None
    assert table_in(plan) is place
    assert ("n-gram tables, 24.0 GiB, stay in their files" in plan_sentence(plan)) == (place is None)
    assert plan_as_json(plan)["tables_in_files_bytes"] == (TABLE if place is None else 0)
    assert table_in(recheck(plan, 40 * GIB)) is place


def test_a_small_table_lies_on_the_card_unless_it_is_to_stay_in_its_files() -> None:
    weights = {**WEIGHTS, Part.NGRAM: GIB // 5}
    assert table_in(planned(16, TableRoom.AUTO, weights=weights)) is Place.CARD
    assert table_in(planned(16, TableRoom.FILE, weights=weights)) is None


def test_the_table_leaves_main_memory_before_experts_are_kept_apart() -> None:
    plan = planned(80, TableRoom.AUTO, 40)
    assert (plan.refusal, table_in(plan)) == (None, None)
    assert plan.seats is not None and not plan.request.is_exclusive
    assert plan.used(Place.RAM) < 70 * GIB
    kept = planned(80, TableRoom.MEMORY, 40)
    assert kept.refusal is not None
    assert kept.refusal.endswith("; with ngram_table auto or file the n-gram tables, 24.0 GiB, stay in their files")


def test_files_that_cannot_be_read_keep_the_table_in_memory_and_are_told_where_it_does_not_fit() -> None:
    problem = "it is stored backwards"
    assert table_in(planned(64, TableRoom.AUTO, table_problem=problem)) is Place.RAM
    short = planned(16, TableRoom.AUTO, table_problem=problem).refusal
    assert short is not None
    assert short.endswith(f"; the n-gram tables cannot stay in their files: {problem}")
    asked = planned(64, TableRoom.FILE, table_problem=problem).refusal
    assert asked == f"setting ngram_table: file does not work: {problem}; memory does"
