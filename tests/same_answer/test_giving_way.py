"""Long prompts that give way to short ones in the middle, in every read mode: nobody's tokens or bits depend on it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from strata.build import load_model
from strata.cli.synth import synth
from strata.engine.messages import FromEngine, PromptRead
from strata.engine.points import PointBudget
from strata.engine.request import TokenRequest
from strata.models.base import LanguageModel
from strata.settings import EngineSettings
from strata.types import FinishReason
from tests.same_answer.conftest import FAMILIES
from tests.same_answer.served import Served, assert_whole, has_drawn, is_read, request, text

MODES = {
    "layers": {"max_gap_ms": 1.0},
    "whole": {"read_mode": "whole"},
    "pieces": {"piped_read_piece": 100, "piped_decode_max_ms": 2.0},
}
SHARED = text(150, 3)
FIRST = request(text(40, 1), 40)
LONG = request([*SHARED, *text(450, 2)], 5, boundaries=(90, 590))
SHORT = request([*SHARED, *text(30, 4)], 12)
SHORTER = request(text(20, 5), 8)
LATER = request([*LONG.prompt, *text(30, 6)], 5)


def served_by(model: LanguageModel, mode: str, slots: int = 4, **more: object) -> Served:
    return Served(model, slots, chunk_rows=64, drafts=1, **MODES[mode], **more)  # type: ignore[arg-type]


def alone(model: LanguageModel, asked: TokenRequest) -> list[tuple[int, str]]:
    return _alone(model, asked.prompt, asked.options.max_tokens or 0)


@cache
def _alone(model: LanguageModel, prompt: tuple[int, ...], tokens: int) -> list[tuple[int, str]]:
    answer = Served(model, 1).ask(request(prompt, tokens))
    assert_whole(answer)
    return answer.bits


def has_given_way(served: Served, times: int) -> Callable[[FromEngine], bool]:
    return lambda event: served.scheduler.statistics().give_ways == times


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_read_that_gave_way_twice_gives_everybody_what_they_get_alone(
    models: dict[str, LanguageModel], family: str, mode: str
) -> None:
    """One of those that pass shares the beginning of the long one, which is half read when it is copied."""
    served = served_by(models[family], mode)
    served.submit(1, FIRST)
    served.until(has_drawn(1))
    served.submit(2, LONG)
    served.until(is_read(2, 256))
    served.turn()
    served.submit(3, SHORT)
    served.submit(4, SHORTER)
    served.finish()
    for number, asked in ((1, FIRST), (2, LONG), (3, SHORT), (4, SHORTER)):
        assert served.answers[number].bits == alone(models[family], asked), number
    assert served.scheduler.statistics().give_ways == 2
    assert served.answers[3].cached == 64


@pytest.mark.parametrize("mode", ["layers", "pieces"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_read_that_gave_way_is_cancelled_and_its_beginning_serves_the_next_one(
    models: dict[str, LanguageModel], family: str, mode: str
) -> None:
    """With room for few points, too: those that a read under way was promised are not given to another one."""
    served = served_by(models[family], mode, 3, points=PointBudget(6, 3))
    served.submit(1, LONG)
    served.until(is_read(1, 128))
    served.turn()
    served.submit(2, SHORT)
    served.until(has_given_way(served, 1))
    served.scheduler.cancel(1)
    served.finish()
    ended = served.answers[1].ended
    assert ended is not None and ended.reason is FinishReason.CANCELLED
    assert served.answers[2].bits == alone(models[family], SHORT)
    answer = served.ask(LATER)
    assert answer.cached >= 128
    assert answer.bits == alone(models[family], LATER)
    kept = served.scheduler.statistics().checkpoints["kept"]
    assert kept <= 6


def test_log_probabilities_of_a_prompt_are_those_of_a_read_that_nobody_passed(models: dict[str, LanguageModel]) -> None:
    asked = replace(LONG, prompt_logprobs=1)
    served = served_by(models["qwen3_next"], "layers")
    served.submit(1, asked)
    served.until(is_read(1, 128))
    served.submit(2, SHORT)
    served.finish()
    lone = Served(models["qwen3_next"], 1, chunk_rows=64)
    lone.ask(asked)
    (told,), (expected,) = (
        [event for event in each.events if isinstance(event, PromptRead)] for each in (served, lone)
    )
    assert served.scheduler.statistics().give_ways == 1
    assert len(told.logprobs) == len(asked.prompt)
    assert told.logprobs == expected.logprobs


def test_where_torch_reads_they_give_way_with_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    synth("qwen4_exp", folder, fields=["vocab_size=8192"])
    model = load_model(folder, EngineSettings(threads=1, cpu_path="torch")).engine.model
    served = served_by(model, "layers")
    served.submit(1, LONG)
    served.until(is_read(1, 128))
    served.submit(2, SHORT)
    served.finish()
    assert served.scheduler.statistics().give_ways == 1
    assert [served.answers[number].bits for number in (1, 2)] == [alone(model, LONG), alone(model, SHORT)]
