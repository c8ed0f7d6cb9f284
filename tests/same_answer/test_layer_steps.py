"""Prompts that pass a stage layer by layer beside running replies: nobody's tokens depend on it. On CPU tensors."""

from functools import cache

import pytest

from strata.engine.messages import PromptRead, ReadProgress
from strata.engine.steps import Abandon, Read, SlotResult, Step, Window
from strata.models.base import LanguageModel
from strata.types import FinishReason
from tests.engine.chunked_stages import chunked_model
from tests.engine.served import Served as Ahead
from tests.engine.served import ask
from tests.engine.stages import stage_engine
from tests.same_answer.served import Served, assert_whole, has_drawn, request, text

pytestmark = pytest.mark.usefixtures("library_products")
VOCABULARY = 60  # of every tiny model
FAMILIES = ("qwen4_exp", "llama")


def prompt(rows: int, salt: int) -> list[int]:
    return [token % VOCABULARY for token in text(rows, salt)]


class Noting(Served):
    """Also notes the steps."""

    def __init__(self, model: LanguageModel, slots: int = 1, **settings: object) -> None:
        super().__init__(model, slots, **settings)  # type: ignore[arg-type]
        self.steps: list[Step] = []
        engine = self.scheduler._engine
        run = engine.run

        def noting(step: Step) -> tuple[SlotResult, ...]:
            self.steps.append(step)
            return run(step)

        engine.run = noting  # type: ignore[method-assign]


def alone(family: str, prompt_ids: list[int], tokens: int) -> list[tuple[int, str]]:
    return _alone(family, tuple(prompt_ids), tokens)


@cache
def _alone(family: str, prompt_ids: tuple[int, ...], tokens: int) -> list[tuple[int, str]]:
    served = Served(chunked_model(family), 1)
    answer = served.ask(request(list(prompt_ids), tokens))
    assert_whole(answer)
    return answer.bits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_read_beside_a_reply_gives_both_what_they_get_alone(family: str) -> None:
    first, second = prompt(40, 1), prompt(150, 2)
    served = Noting(chunked_model(family), 2, max_gap_ms=1.0)
    served.submit(1, request(first, 12))
    served.until(has_drawn(1))
    served.submit(2, request(second, 3))
    served.finish()
    assert served.answers[1].bits == alone(family, first, 12)
    assert served.answers[2].bits == alone(family, second, 3)
    layers = len(chunked_model(family).stage.model.layers)
    own = [step for step in served.steps if isinstance(step, Read) and step.stop == 150]
    assert len(own) == layers + 1  # and the head
    between = served.steps[served.steps.index(own[0]) : len(served.steps) - served.steps[::-1].index(own[-1])]
    assert sum(isinstance(step, Window) for step in between) >= layers - 1  # the gap is full behind every layer


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_of_several_chunks_goes_on_from_its_last_line(family: str) -> None:
    asked = prompt(300, 3)
    served = Noting(chunked_model(family, capacity=128), 1)
    answer = served.ask(request(asked, 4))
    assert answer.bits == alone(family, asked, 4)
    stops = list(dict.fromkeys(step.stop for step in served.steps if isinstance(step, Read)))
    assert stops == [128, 256, 300]
    longer = [*asked[:270], *prompt(40, 4)]
    again = served.ask(request(longer, 4))
    assert again.cached == 256
    assert again.bits == alone(family, longer, 4)
    kept = served.ask(request([*longer[:300], *prompt(9, 5)], 4))
    assert kept.cached == 256


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_request_that_is_cancelled_between_two_layers_leaves_its_slot(family: str, turns: int) -> None:
    asked, model = prompt(200, 6), chunked_model(family, slots=1, capacity=128)
    served = Noting(model, 1)
    served.submit(1, request(asked, 4))
    for _ in range(1 + turns):
        served.turn()
    served.scheduler.cancel(1)
    served.finish()
    assert served.answers[1].ended is not None and served.answers[1].ended.reason is FinishReason.CANCELLED
    assert (Abandon(0) in served.steps) is (turns % len(model.stage.model.layers) != 0)
    assert served.ask(request(asked, 4)).bits == alone(family, asked, 4)


def test_a_request_cancelled_in_its_second_chunk_goes_on_behind_the_first() -> None:
    asked = prompt(200, 6)
    model = chunked_model("qwen4_exp", slots=1, capacity=128)
    served = Noting(model, 1)
    served.submit(1, request(asked, 4))
    served.until(lambda event: isinstance(event, ReadProgress) and event.done == 128)
    served.turn()
    served.scheduler.cancel(1)
    served.finish()
    again = served.ask(request(asked, 4))
    assert again.cached == 128
    assert again.bits == alone("qwen4_exp", asked, 4)


def test_hundreds_of_cancelled_reads_leave_the_memory_as_it_was() -> None:
    model = chunked_model("llama", slots=1, capacity=64)
    served = Served(model, 1)
    before = served.scheduler.statistics().memory
    for number in range(300):
        served.submit(number, request(prompt(60, number), 2))
        served.turn()
        served.turn()
        served.scheduler.cancel(number)
        while served.scheduler.has_work:
            served.turn()
    assert served.scheduler.statistics().memory == before
    assert served.ask(request(prompt(60, 1), 2)).bits == alone("llama", prompt(60, 1), 2)


def test_logprobs_of_a_prompt_are_those_of_its_rows() -> None:
    asked = prompt(150, 8)
    found = []
    for capacity in (64, 256):
        served = Served(chunked_model("llama", capacity=capacity), 1)
        wanted = request(asked, 2)
        served.ask(wanted.__class__(**{**vars(wanted), "prompt_logprobs": 1}))
        found.append([event for event in served.events if isinstance(event, PromptRead)])
    assert len(found[0]) == 1 and found[0] == found[1]


def test_windows_one_ahead_go_on_beside_a_read() -> None:
    """The device chooses: a window in flight lands before every layer step."""
    asked = [ask(prompt(20, 9), 16), ask(prompt(150, 10), 6), ask(prompt(70, 11), 4, temperature=1.0, seed=3)]
    wanted = [Ahead(stage_engine(chunked_model("llama"), is_ahead=False), 1).ask(each) for each in asked]
    served = Ahead(stage_engine(chunked_model("llama", slots=3), is_ahead=True), 3)
    for number, each in enumerate(asked):
        served.submit(number, each)
        while not served.replies[number]:
            served.turn()
    served.finish()
    assert [served.replies[number] for number in range(3)] == wanted
