"""Conversations that take turns in one slot are read once, and have the bits that they have in slots of their own."""

import pytest

from strata.engine.steps import ParkingSpace
from strata.models.base import LanguageModel
from tests.same_answer.conftest import FAMILIES
from tests.same_answer.served import Answer, Served, assert_whole, request, text

ROOM = ParkingSpace(64 << 20, 1 << 20, 4096.0)
NEW = 21  # rows of what the user says next


def turns(served: Served, count: int = 3, rounds: int = 3) -> list[Answer]:
    """Prompts and follow-ups of conversations, one after another; asserts that nothing is read again."""
    texts, answers = [text(260 + 20 * number, number) for number in range(count)], []
    for turn in range(rounds):
        for number, prompt in enumerate(texts):
            answer = served.ask(request(prompt, 7))
            assert_whole(answer)
            assert answer.ended is not None and not answer.ended.notices
            assert answer.cached == (len(prompt) - NEW - 1 if turn else 0)
            answers.append(answer)
            texts[number] = [*prompt, *answer.token_ids, *text(NEW, 70 + 3 * turn + number)]
    return answers


@pytest.mark.parametrize(("family", "drafts"), [*((family, 0) for family in FAMILIES), ("qwen4_exp", 2)])
def test_three_conversations_on_one_slot(models: dict[str, LanguageModel], family: str, drafts: int) -> None:
    shared, apart = Served(models[family], 1, parking=ROOM, drafts=drafts), Served(models[family], 3, drafts=drafts)
    assert [answer.bits for answer in turns(shared)] == [answer.bits for answer in turns(apart)]
    counts = shared.scheduler.statistics().parked
    assert (counts["kept"], counts["returned"], counts["dropped"]) == (2, 6, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_where_turns_are_read_a_parked_conversation_changes_no_bit(
    models: dict[str, LanguageModel], family: str
) -> None:
    model, prompts = models[family], [text(300, 1), text(310, 2)]
    served = Served(model, 1, turn_state="read", parking=ROOM)
    first = [served.ask(request(prompt, 5)) for prompt in prompts]
    for prompt, reply in zip(prompts, first, strict=True):
        asked = request([*prompt, *reply.token_ids, *text(NEW, 9)], 6)
        answer = served.ask(asked)
        assert answer.cached == 256
        assert answer.bits == Served(model, turn_state="read").ask(asked).bits


def test_another_question_goes_on_from_a_point_of_a_parked_conversation(models: dict[str, LanguageModel]) -> None:
    model, prompt = models["qwen3_next"], text(300, 4)
    served = Served(model, 1, parking=ROOM)
    served.ask(request(prompt, 30))
    served.ask(request(text(280, 5), 3))
    other = request([*prompt[:290], *text(40, 6)], 6)
    found = served.ask(other)
    assert (found.cached, found.bits) == (256, Served(model).ask(other).bits)
