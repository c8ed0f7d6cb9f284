"""Prompts of every length on the CPU's models, and prompts that are given up in the middle: the slot is as before."""

from collections.abc import Callable
from typing import Any

import pytest

from strata.engine.engine import TokenEngine
from strata.engine.steps import Abandon, Read
from strata.errors import RequestError
from strata.models.reading import Steps
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings
from strata.types import FinishReason
from tests.engine.cancelled_reads import Reads
from tests.models.fast.twins import native_model, needs_library, torch_model
from tests.same_answer.served import Served, assert_whole, request, text

CONTEXT = 200
VOCABULARY = 60  # of the tiny models
ROADS = (pytest.param(native_model, marks=needs_library, id="native"), pytest.param(torch_model, id="torch"))
pytestmark = pytest.mark.parametrize("road", ROADS)


def prompt(rows: int, salt: int = 0) -> list[int]:
    return [token % VOCABULARY for token in text(rows, salt)]


def served(model: Any, chunk_rows: int, drafts: int = 0) -> Served:
    return Served(model, 1, chunk_rows=chunk_rows, context=CONTEXT, drafts=drafts)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 128, CONTEXT - 1])
def test_a_prompt_of_any_length_fits_into_chunks(road: Callable[[str], Any], rows: int) -> None:
    model, asked = road("qwen4_exp"), request(prompt(rows), 2)
    small, large = served(model, 64, drafts=1), served(model, 512)
    for _ in range(2):  # the slot may be used again
        found, expected = small.ask(asked), large.ask(asked)
        assert_whole(found)
        assert found.bits == expected.bits
    assert found.cached == (rows - 1) // 64 * 64


@pytest.mark.parametrize("rows", [CONTEXT, CONTEXT + 1])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(road: Callable[[str], Any], rows: int) -> None:
    engine = TokenEngine(road("qwen4_exp"), EngineSettings(context=CONTEXT))
    with pytest.raises(RequestError, match=f"the prompt has {rows} tokens and the context holds {CONTEXT}"):
        engine.check(request(prompt(rows)))


@pytest.mark.parametrize("drafts", [0, 1])
def test_a_read_given_up_between_two_steps_leaves_its_slot(road: Callable[[str], Any], drafts: int) -> None:
    model, asked = road("qwen4_exp"), request(prompt(150), 12)
    expected = served(model, 128, drafts).ask(asked)
    steps = 2 * (len(model.layers) + drafts)  # of two passes, of 128 and 22 rows
    for turns in (1, steps // 2 - 1, steps // 2, steps // 2 + 1, steps - 1):
        reads = served(model, 128, drafts)
        done = _noting(reads.scheduler)
        reads.submit(1, asked)
        for _ in range(1 + turns):
            reads.turn()
        assert [type(step) for step in done[1:]] == [Read] * turns
        reads.scheduler.cancel(1)
        reads.finish()
        ended = reads.answers[1].ended
        assert ended is not None and ended.reason is FinishReason.CANCELLED
        assert isinstance(done[-1], Abandon) is (turns != steps // 2)  # between two chunks nothing is under way
        again = reads.ask(asked)
        assert again.bits == expected.bits
        assert again.cached == (0 if turns < steps // 2 else 128)
        if turns >= steps // 2:  # the draft layer goes on from there, too
            assert again.ended is not None and expected.ended is not None
            assert again.ended.usage.accepted_drafts == expected.ended.usage.accepted_drafts


def test_a_step_that_is_interrupted_leaves_an_engine_that_answers(
    road: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = road("qwen4_exp"), request(prompt(150), 4)
    expected, reads = served(model, 128, 1).ask(asked), served(model, 128, 1)
    reads.submit(1, asked)
    for _ in range(4):
        reads.turn()
    advance = Steps.advance

    def interrupted(self: Steps) -> bool:
        advance(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Steps, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reads.turn()
    monkeypatch.undo()
    engine: Any = reads.scheduler._engine
    engine.forget_all()  # as `scheduler.runner` does
    assert engine.memory()["states"] == 0
    reads.scheduler = Scheduler(engine, reads.scheduler._limits)
    assert reads.ask(asked).bits == expected.bits


def test_many_reads_given_up_leave_the_memory_as_it_was(road: Callable[[str], Any]) -> None:
    """`python -m tests.engine.cancelled_reads` looks at the process's memory, too."""
    settings = EngineSettings(slots=1, drafts=1, chunk_rows=64, context=CONTEXT)
    reads = Reads(TokenEngine(road("qwen4_exp"), settings), settings)
    asked = tuple(prompt(150))
    expected, before = reads.answer(asked), reads.engine.memory()
    cancelled = sum(reads.cancel_one() for _ in range(60 if road is native_model else 10))
    assert cancelled >= 5
    assert reads.answer(asked) == expected
    assert reads.engine.memory() == before


def _noting(scheduler: Scheduler) -> list[Any]:
    """The steps that are run from now on."""
    steps: list[Any] = []
    engine: Any = scheduler._engine
    run = engine.run

    def noting(step: Any) -> Any:
        steps.append(step)
        return run(step)

    engine.run = noting
    return steps
