"""What a slot keeps: the next turn has the bits of its definition, anything else those of a fresh read.

A kept turn is defined as: the prompt was read, the reply's tokens but the last were decoded, the new rows are read
behind them. Whatever else a slot's state can be used for gives what reading everything from the start gives.
"""

from collections.abc import Sequence

import pytest
import torch

from strata.models.base import LanguageModel, LogitRows, Segment
from strata.sampling.logprobs import token_logprob
from strata.types import FinishReason
from tests.same_answer.conftest import FAMILIES
from tests.same_answer.served import Answer, Served, assert_whole, has_drawn, is_read, request, text

NEW = text(75, 99)  # what the user says next; with it prompts end off the grid
DRAFTING = [*((family, 0) for family in FAMILIES), ("qwen4_exp", 2)]


def defined_turn(
    model: LanguageModel, prompt: Sequence[int], decoded: Sequence[int], new: Sequence[int], count: int
) -> list[tuple[int, str]]:
    """Greedy tokens and their logprobs of a kept turn, by calls of the model alone."""
    state = model.new_state()
    model.read([Segment(state, torch.tensor(prompt))], LogitRows.NONE)
    for token in decoded:
        model.commit(model.window([Segment(state, torch.tensor([token]))]), [1])
    logits = model.read([Segment(state, torch.tensor(new))]).logits[-1]
    bits = []
    while True:
        token = int(logits.argmax())
        bits.append((token, token_logprob(logits.float(), token, 0)[0].hex()))
        if len(bits) == count:
            return bits
        window = model.window([Segment(state, torch.tensor([token]))])
        model.commit(window, [1])
        logits = window.output.logits[-1]


def fresh(model: LanguageModel, prompt: Sequence[int], count: int = 6) -> list[tuple[int, str]]:
    return Served(model).ask(request(prompt, count)).bits


def notices(answer: Answer) -> tuple[str, ...]:
    assert answer.ended is not None
    return answer.ended.notices


@pytest.mark.parametrize(("family", "drafts"), DRAFTING)
@pytest.mark.parametrize("reply_tokens", [2, 45])
def test_next_turn_goes_on_behind_the_reply(
    models: dict[str, LanguageModel], family: str, drafts: int, reply_tokens: int
) -> None:
    model, prompt = models[family], text(150, 1)
    served = Served(model, 2, drafts=drafts)
    reply = served.ask(request(prompt, reply_tokens)).token_ids
    turn = served.ask(request([*prompt, *reply, *NEW], 6))
    assert turn.cached == len(prompt) + len(reply) - 1
    assert turn.bits == defined_turn(model, prompt, reply[:-1], [reply[-1], *NEW], 6)
    assert notices(turn) == ()


@pytest.mark.parametrize(("family", "drafts"), DRAFTING)
@pytest.mark.parametrize("late", [0, 2, 17, 50])
def test_a_stop_seen_late_goes_on_from_where_the_text_ended(
    models: dict[str, LanguageModel], family: str, drafts: int, late: int
) -> None:
    model, prompt, keep = models[family], text(100, 2), 23
    served = Served(model, 2, drafts=drafts)
    served.submit(1, request(prompt, 200))
    while len(served.answers[1].draws) < keep + late:
        served.turn()
    served.scheduler.cancel(1, keep_tokens=keep)
    served.finish()
    ended = served.answers[1].ended
    assert ended is not None
    assert (ended.reason, ended.usage.completion_tokens) == (FinishReason.CANCELLED, keep)
    reply = served.answers[1].token_ids[:keep]
    turn = served.ask(request([*prompt, *reply, *NEW], 6))
    assert turn.cached == len(prompt) + keep - 1
    assert turn.bits == defined_turn(model, prompt, reply[:-1], [reply[-1], *NEW], 6)


def test_a_stop_found_in_the_last_window_of_a_reply_cuts_it_too(models: dict[str, LanguageModel]) -> None:
    model, prompt = models["qwen3_next"], text(100, 2)
    served = Served(model, 2)
    served.submit(1, request(prompt, 10))
    served.finish()
    served.scheduler.cancel(1, keep_tokens=7)
    assert not served.scheduler.has_work
    reply = served.answers[1].token_ids[:7]
    turn = served.ask(request([*prompt, *reply, *NEW], 6))
    assert turn.bits == defined_turn(model, prompt, reply[:-1], [reply[-1], *NEW], 6)


@pytest.mark.parametrize("family", FAMILIES)
def test_turn_after_turn(models: dict[str, LanguageModel], family: str) -> None:
    model, conversation = models[family], text(70, 3)
    served = Served(model, 2)
    kept = 0
    for turn in range(4):
        answer = served.ask(request(conversation, 9))
        assert answer.cached == kept
        kept = len(conversation) + 8
        conversation = [*conversation, *answer.token_ids, *text(30, turn)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kept_turn_has_the_bits_of_a_fresh_read_where_reads_have_those_of_windows(
    models: dict[str, LanguageModel], family: str
) -> None:
    model, prompt = models[family], text(100, 6)
    if not model.reads_as_windows:
        pytest.skip("no native library: torch reads 64 rows of the delta rule at once")
    served = Served(model, 2)
    reply = served.ask(request(prompt, 9)).token_ids
    turn = served.ask(request([*prompt, *reply, *NEW], 6))
    assert turn.cached == len(prompt) + 8
    assert turn.bits == fresh(model, [*prompt, *reply, *NEW], 6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_prompt_again_gives_the_same_bits(models: dict[str, LanguageModel], family: str) -> None:
    model, prompt = models[family], text(150, 4)
    served = Served(model, 2)
    first = served.ask(request(prompt, 12))
    again = served.ask(request(prompt, 12))
    assert again.bits == first.bits == fresh(model, prompt, 12)
    assert (first.cached, again.cached) == (0, 128)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shared", [64, 100, 149, 155])
def test_a_prompt_that_parts_from_a_kept_one_gives_the_bits_of_a_fresh_read(
    models: dict[str, LanguageModel], family: str, shared: int
) -> None:
    model, prompt = models[family], text(150, 5)
    served = Served(model, 2)
    reply = served.ask(request(prompt, 12, boundaries=[70, 145])).token_ids
    other = [*[*prompt, *reply][:shared], *NEW]
    answer = served.ask(request(other, 6))
    assert answer.cached == min(shared, 128) // 64 * 64
    assert answer.bits == fresh(model, other)
    assert notices(answer) == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_states_that_are_only_read_make_every_turn_a_fresh_read(models: dict[str, LanguageModel], family: str) -> None:
    model, prompt = models[family], text(150, 6)
    served = Served(model, 2, turn_state="read")
    reply = served.ask(request(prompt, 30)).token_ids
    second = [*prompt, *reply, *NEW]
    turn = served.ask(request(second, 6))
    assert turn.cached == 128
    assert turn.bits == fresh(model, second)
    third = [*second, *turn.token_ids, *NEW]
    turn = served.ask(request(third, 6))
    assert turn.cached == (len(second) - 1) // 64 * 64
    assert turn.bits == fresh(model, third)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_turns_go_on_from_one_conversation_at_once(models: dict[str, LanguageModel], family: str) -> None:
    model, prompt = models[family], text(150, 7)
    served = Served(model, 3)
    reply = served.ask(request(prompt, 20)).token_ids
    turns = [[*prompt, *reply, *NEW], [*prompt, *reply, *text(50, 8)]]
    for number, turn in enumerate(turns):
        served.submit(number, request(turn, 6))
    served.finish()
    for number, turn in enumerate(turns):
        new = turn[len(prompt) + len(reply) - 1 :]
        assert served.answers[number].bits == defined_turn(model, prompt, reply[:-1], new, 6)


def test_a_dropped_conversation_is_read_again_and_the_usage_says_so(models: dict[str, LanguageModel]) -> None:
    model, prompt = models["qwen3_next"], text(150, 9)
    served = Served(model, 1)
    reply = served.ask(request(prompt, 20)).token_ids
    served.ask(request(text(40, 10), 2))
    turn = served.ask(request([*prompt, *reply, *NEW], 6))
    assert turn.cached == 0
    (notice,) = notices(turn)
    assert "tokens 0 to 169 were read again" in notice
    effect = "gives the same bits as" if model.reads_as_windows else "rounds otherwise than"
    assert notice.endswith(f"which {effect} going on from it")
    assert turn.bits == fresh(model, [*prompt, *reply, *NEW])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_read_that_was_cancelled_is_gone_on_with(models: dict[str, LanguageModel], family: str) -> None:
    model, prompt = models[family], text(400, 11)
    served = Served(model, 1, chunk_rows=64)
    served.submit(1, request(prompt, 4))
    served.until(is_read(1, 192))
    served.scheduler.cancel(1)
    served.finish()
    assert_whole(served.answers[1], FinishReason.CANCELLED)
    answer = served.ask(request(prompt, 6))
    assert answer.cached == 192
    assert answer.bits == fresh(model, prompt)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_running_reply_lends_what_it_has_read(models: dict[str, LanguageModel], family: str) -> None:
    model, prompt = models[family], text(200, 12)
    served = Served(model, 2)
    served.submit(1, request(prompt, 30))
    served.until(has_drawn(1))
    other = [*prompt[:170], *NEW]
    served.submit(2, request(other, 6))
    served.finish()
    assert served.answers[2].cached == 0  # its only point lies behind the place where they part
    served.submit(3, request([*prompt, *NEW], 6))
    served.finish()
    assert served.answers[3].cached == 192
    assert served.answers[1].bits == fresh(model, prompt, 30)
    assert served.answers[2].bits == fresh(model, other)
    assert served.answers[3].bits == fresh(model, [*prompt, *NEW])
