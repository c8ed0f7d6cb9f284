"""The same prompt gives the same tokens and the same bits whoever else is served, and however it was read."""

import pytest

from strata.engine.request import TokenRequest
from strata.models.base import LanguageModel
from strata.types import FinishReason
from tests.same_answer.conftest import FAMILIES
from tests.same_answer.served import Served, assert_whole, has_drawn, is_read, request, text

LENGTHS = (5, 64, 130, 70, 200, 33, 128, 90)


def mixed_requests(count: int) -> list[TokenRequest]:
    """Greedy ones, drawn ones, ones with penalties; prompts that end on the grid and off it."""
    options = ({}, {"temperature": 0.9, "seed": 7}, {"temperature": 1.1, "seed": 9, "repetition_penalty": 1.2})
    return [request(text(LENGTHS[n], n), 10, **options[n % 3]) for n in range(count)]


def alone(model: LanguageModel, asked: TokenRequest, **settings: int) -> list[tuple[int, str]]:
    answer = Served(model, **settings).ask(asked)
    assert_whole(answer)
    return answer.bits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("slots", [2, 4, 8])
def test_company_changes_no_bit(models: dict[str, LanguageModel], family: str, slots: int) -> None:
    asked = mixed_requests(slots)
    served = Served(models[family], slots, max_gap_ms=1.0)  # a window after every piece of a read
    for number, each in enumerate(asked):
        served.submit(number, each)
    served.finish()
    for number, each in enumerate(asked):
        assert_whole(served.answers[number])
        assert served.answers[number].bits == alone(models[family], each)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk_rows", [64, 192])
def test_size_of_the_pieces_changes_no_bit(models: dict[str, LanguageModel], family: str, chunk_rows: int) -> None:
    asked = request(text(300, 3), 4)
    assert alone(models[family], asked, chunk_rows=chunk_rows) == alone(models[family], asked)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_read_in_between_changes_no_bit(models: dict[str, LanguageModel], family: str) -> None:
    running, joining = request(text(40, 1), 30), request(text(400, 2), 3)
    served = Served(models[family], 2, chunk_rows=256, max_gap_ms=1.0)
    served.submit(1, running)
    served.until(has_drawn(1))
    served.submit(2, joining)
    before = len(served.answers[1].draws)
    served.until(is_read(2, 256))
    layers = len(served.scheduler._engine.model.layers)  # type: ignore[attr-defined]
    assert len(served.answers[1].draws) - before >= layers - 1  # a window between any two layers of the first chunk
    served.finish()
    assert served.answers[1].bits == alone(models[family], running)
    assert served.answers[2].bits == alone(models[family], joining)


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbours_that_were_cancelled_change_no_bit(models: dict[str, LanguageModel], family: str) -> None:
    asked = request(text(130, 5), 10)
    served = Served(models[family], 3, chunk_rows=64, max_gap_ms=1.0)
    served.submit(1, asked)
    served.submit(2, request(text(500, 6), 30))
    served.until(is_read(2, 64))
    served.submit(3, request(text(20, 7), 30))
    served.scheduler.cancel(2)
    served.until(has_drawn(3))
    served.scheduler.cancel(3)
    served.finish()
    assert served.answers[1].bits == alone(models[family], asked)
    for number in (2, 3):
        assert_whole(served.answers[number], FinishReason.CANCELLED)


@pytest.mark.parametrize("drafts", [1, 3])
def test_drafts_in_company_change_no_bit(models: dict[str, LanguageModel], drafts: int) -> None:
    model = models["qwen4_exp"]
    asked = mixed_requests(4)
    served = Served(model, 4, drafts=drafts)
    for number, each in enumerate(asked):
        served.submit(number, each)
    served.finish()
    assert served.scheduler.statistics().drafted_tokens > 0
    for number, each in enumerate(asked):
        assert served.answers[number].bits == alone(model, each)


def test_trained_model_in_company(pocket: LanguageModel) -> None:
    asked = [request(text(90 + 30 * n, n), 8, temperature=0.8 * (n % 2), seed=n) for n in range(3)]
    served = Served(pocket, 3, drafts=1)
    for number, each in enumerate(asked):
        served.submit(number, each)
    served.finish()
    for number, each in enumerate(asked):
        assert served.answers[number].bits == alone(pocket, each)


def test_choices_of_one_prompt_are_their_own_and_read_it_once(models: dict[str, LanguageModel]) -> None:
    model, prompt = models["qwen3_next"], text(200, 4)
    asked = [request(prompt, 8, temperature=1.0, seed=3, choice=choice) for choice in range(3)]
    served = Served(model, 3)
    for number, each in enumerate(asked):
        served.submit(number, each)
    served.finish()
    answers = [served.answers[number] for number in range(3)]
    assert [answer.cached for answer in answers] == [0, 192, 192]
    assert [answer.bits for answer in answers] == [alone(model, each) for each in asked]
    assert len({tuple(answer.token_ids) for answer in answers}) == 3
