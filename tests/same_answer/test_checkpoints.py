"""A follow-up reads only what is new, on the CPU and where prompts pass a stage in chunks: rows counted, bits compared.

Chats are a system prompt, turns, and asides of other texts in between; a point lies on the grid in front of a boundary.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from strata.engine.points import PointBudget
from strata.engine.stage_loading import make_point_room
from strata.engine.stage_model import StageModel
from strata.experts.host_memory import Pinning
from strata.models.base import LanguageModel
from strata.scheduler import places
from tests.engine.chunked_stages import chunked_model
from tests.same_answer.served import Answer, Served, assert_whole, has_drawn, is_read, request, text

VOCABULARY = 360  # text() gives 60 token ids of it, as many as the tiny models of a stage have
SYSTEM, ROOT = 100, 64  # rows, and the line in front of their end
STAGE = {"context": 512, "capacity": 256}


def say(rows: int, salt: int) -> list[int]:
    return [token - 300 for token in text(rows, salt, VOCABULARY)]


@dataclass
class Road:
    """Makes models with empty slots."""

    make: Callable[[], Any]

    def served(self, slots: int = 2, points: PointBudget | None = None, **settings: Any) -> Served:
        model = self.make()
        if points is None and isinstance(model, StageModel):
            points = make_point_room(model.slots, 40 * model.slots.point_bytes, None)
        return Served(model, slots, points=points, **settings)

    def fresh(self, prompt: list[int], count: int = 2) -> list[tuple[int, str]]:
        """The bits of a prompt that nobody has read before."""
        return self.served(1).ask(request(prompt, count)).bits


@pytest.fixture(autouse=True)
def short_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system prompt this short is worth a point here."""
    monkeypatch.setattr(places, "ROOT_ROWS", ROOT)


@pytest.fixture(params=["cpu qwen4_exp", "stage qwen3_5_moe"])
def road(request: pytest.FixtureRequest, models: dict[str, LanguageModel]) -> Road:
    place, family = request.param.split()
    if place == "cpu":
        return Road(lambda: models[family])
    return Road(lambda: chunked_model(family, slots=3, **STAGE))


def ask(served: Served, prompt: list[int], boundaries: list[int], count: int = 2) -> tuple[Answer, int]:
    """The answer, and how many rows were read for it."""
    before = served.scheduler.statistics().prompt_tokens
    answer = served.ask(request(prompt, count, boundaries=boundaries))
    assert_whole(answer)
    rows = served.scheduler.statistics().prompt_tokens - before
    assert answer.cached + rows == len(prompt)
    return answer, rows


@pytest.mark.parametrize("turn_state", ["kept", "read"])
def test_a_second_turn_reads_what_is_new_and_an_aside_in_between_costs_it_nothing(road: Road, turn_state: str) -> None:
    served = road.served(2, turn_state=turn_state)
    prompt = [*say(SYSTEM, 1), *say(75, 2)]
    first, rows = ask(served, prompt, [SYSTEM, 171])
    assert rows == 175
    assert ask(served, say(80, 3), [76])[1] == 80
    second = [*prompt, *first.token_ids, *say(50, 4)]
    answer, rows = ask(served, second, [SYSTEM, 171, 180, 225])
    held = 175 + 1 if turn_state == "kept" else 128  # all that was decoded, or the line in front of the reply's start
    assert rows == len(second) - held
    if turn_state == "read":
        assert answer.bits == road.fresh(second)


def test_another_last_question_goes_on_where_that_turn_began(road: Road) -> None:
    """Both of a conversation's last turn: the reply again, and another question."""
    served = road.served(2)
    prompt = [*say(SYSTEM, 1), *say(150, 2)]
    boundaries = [SYSTEM, 190, 245]
    ask(served, prompt, boundaries)
    again, rows = ask(served, prompt, boundaries)
    assert rows == 250 - 192
    other = [*prompt[:191], *say(60, 5)]
    answer, rows = ask(served, other, [SYSTEM, 190, 246])
    assert rows == 251 - 128
    assert answer.bits == road.fresh(other)
    assert again.bits == road.fresh(prompt)


def test_conversations_with_one_system_prompt_read_it_once(road: Road) -> None:
    served = road.served(3)
    for salt in (2, 3):
        prompt = [*say(SYSTEM, 1), *say(60, salt)]
        answer, rows = ask(served, prompt, [SYSTEM, 156])
        assert rows == 160 - (ROOT if salt == 3 else 0)
    assert answer.bits == road.fresh(prompt)
    counts = served.scheduler.statistics().checkpoints
    assert (counts["kept"], counts["hits"], counts["rows"], counts["dropped"]) == (3, 1, ROOT, 0)


def test_a_prompt_goes_on_from_a_point_that_is_taken_while_another_is_read(road: Road) -> None:
    """Its first chunk is through, or has passed the root; the other one waits, and shares what is there by then."""
    served, system = road.served(2, chunk_rows=64), say(SYSTEM, 1)
    served.submit(1, request([*system, *say(150, 2)], 2, boundaries=[SYSTEM, 245]))
    served.until(is_read(1, 128))
    other = [*system, *say(40, 3)]
    served.submit(2, request(other, 2, boundaries=[SYSTEM, 135]))
    served.until(has_drawn(1))
    served.finish()
    assert served.answers[2].cached == ROOT
    assert served.answers[2].bits == road.fresh(other)


def test_a_budget_too_small_costs_rows_and_nothing_else(road: Road, caplog: pytest.LogCaptureFixture) -> None:
    """Only the last point of each slot is kept: nobody shares the system prompt; it is told once and counted."""
    served = road.served(2, PointBudget(2, 2))
    with caplog.at_level(logging.WARNING, logger="strata.checkpoints"):
        for salt in (2, 3, 4):
            prompt = [*say(SYSTEM, 1), *say(60, salt)]
            answer, rows = ask(served, prompt, [SYSTEM, 156])
            assert rows == 160
        assert answer.bits == road.fresh(prompt)
        assert ask(served, prompt, [SYSTEM, 156])[1] == 160 - 128
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "there is room for 2" in caplog.text
    counts = served.scheduler.statistics().checkpoints
    assert (counts["kept"], counts["dropped"]) == (2, 3)


def test_memory_of_points_is_used_again_and_never_asked_for_twice() -> None:
    """Every copy lies in a piece of the room as long as the budget holds; unpinned memory changes no bit."""
    model = chunked_model("qwen3_5_moe", slots=2, **STAGE)
    refused = Pinning(lambda address, size: "CUDA says 2", lambda address: None)
    points = make_point_room(model.slots, 8 * model.slots.point_bytes, refused)
    assert points == PointBudget(6, 2)
    assert len(model.slots.notices) == 1
    served, found = Served(model, 2, points=points), []
    for salt in range(3):
        prompt = [*say(SYSTEM, 1), *say(100 + 32 * salt, 2 + salt)]
        found.append(ask(served, prompt, [SYSTEM, 130])[0].bits)
        kept = served.scheduler.statistics().checkpoints["kept"]
        assert model.slots.free_points >= 8 - kept - 2 >= 0
    road = Road(lambda: chunked_model("qwen3_5_moe", slots=2, **STAGE))
    assert found[-1] == road.fresh(prompt)


def test_a_system_without_memory_for_points_keeps_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chunked_model("qwen3_5_moe", slots=2, **STAGE)
    monkeypatch.setattr(model.slots, "make_room", lambda points, pinning: None)
    assert make_point_room(model.slots, 40 * model.slots.point_bytes, None) == PointBudget(2, 2)
