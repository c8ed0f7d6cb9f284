"""One request after another on a model whose every answer is known: what is read, drawn and counted, when it ends."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from strata.engine.control import RunControl
from strata.engine.engine import TokenEngine
from strata.engine.request import RunEnded, TokenRequest, TokensDrawn
from strata.errors import RequestError
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.scheduler.due import Limits
from strata.scheduler.runner import RequestRunner
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings
from strata.types import FinishReason
from tests.engine.fake_model import VOCABULARY, FakeHead, FakeModel, continuation, successor


class Served:
    """An engine behind a scheduler in this process."""

    def __init__(self, model: FakeModel, settings: EngineSettings, slots: int = 2) -> None:
        self.engine = engine = TokenEngine(model, settings)
        self.check = engine.check
        self.run = RequestRunner(lambda: Scheduler(engine, Limits.of(settings, slots, engine.chunk_rows))).run


def make_request(
    prompt: list[int], max_tokens: int | None = None, stop: frozenset[int] = frozenset(), **options: Any
) -> TokenRequest:
    return TokenRequest(tuple(prompt), SamplingOptions(max_tokens=max_tokens, **options), stop)


def run(engine: "Served", request: TokenRequest, control: RunControl | None = None) -> tuple[list[int], RunEnded]:
    engine.check(request)
    events = list(engine.run(request, control or RunControl()))
    ended = events.pop()
    assert isinstance(ended, RunEnded)
    tokens = [draw.token_id for event in events if isinstance(event, TokensDrawn) for draw in event.draws]
    return tokens, ended


def test_greedy_reply_is_the_models_own() -> None:
    model = FakeModel()
    tokens, ended = run(Served(model, EngineSettings()), make_request([1, 2], 7))
    assert tokens == continuation(2, 7)
    assert ended.reason is FinishReason.LENGTH
    assert ended.usage.completion_tokens == 7
    assert ended.usage.windows == 6  # the first token comes from reading
    assert model.states[0].tokens == [1, 2, *tokens[:-1]]  # the last token was never read


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_stop_token_is_held_back_until_the_least_tokens_are_there(drafts: int) -> None:
    served = Served(FakeModel(draft_head=FakeHead()), EngineSettings(drafts=drafts))
    stop = frozenset(continuation(2, 3)[2:])
    assert len(run(served, make_request([1, 2], 20, stop))[0]) == 3
    tokens, ended = run(served, make_request([1, 2], 20, stop, min_tokens=6))
    assert stop.isdisjoint(tokens[:6])
    assert (tokens[-1] in stop) == (ended.reason is FinishReason.STOP)
    assert tokens == run(Served(FakeModel(), EngineSettings()), make_request([1, 2], 20, stop, min_tokens=6))[0]


def test_the_least_tokens_and_a_grammar_do_not_go_together() -> None:
    request = dataclasses.replace(make_request([1], 9, min_tokens=2), grammar=GrammarSpec(GrammarKind.REGEX, "a"))
    with pytest.raises(RequestError, match="min_tokens is 2 and there is a grammar"):
        Served(FakeModel(), EngineSettings()).check(request)


def test_rows_of_experts_are_counted_for_every_row_that_is_computed() -> None:
    served = Served(FakeModel(draft_head=FakeHead()), EngineSettings(drafts=2))
    _, ended = run(served, make_request([1] * 10, 8))
    rows = 10 + ended.usage.windows + ended.usage.drafted_tokens
    assert served.engine.experts() == {"cpu": rows * FakeModel.experts_per_row}


@pytest.mark.parametrize("prompt_tokens", [1, 63, 64, 65, 128, 200])
def test_prompt_is_read_in_chunks_and_reported(prompt_tokens: int) -> None:
    model = FakeModel()
    seen: list[tuple[str, int, int]] = []
    control = RunControl(lambda *progress: seen.append(progress))
    prompt = [token % VOCABULARY for token in range(prompt_tokens)]
    tokens, _ = run(Served(model, EngineSettings(chunk_rows=64)), make_request(prompt, 1), control)
    whole, rest = divmod(prompt_tokens, 64)
    assert model.read_rows == [64] * whole + [rest] * (rest > 0)
    assert [done for _, done, _ in seen] == [*range(0, prompt_tokens, 64), prompt_tokens]
    assert tokens == [successor(prompt[-1])]


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("wrong", ["never", "sometimes", "always"])
def test_drafts_change_the_windows_and_not_the_tokens(depth: int, wrong: str) -> None:
    is_wrong = {"never": lambda _: False, "sometimes": lambda token: token % 3 == 0, "always": lambda _: True}[wrong]
    model = FakeModel(draft_head=FakeHead(is_wrong))
    engine = Served(model, EngineSettings(drafts=depth, chunk_rows=64))
    tokens, ended = run(engine, make_request([7] * 70 + [2], 25))
    assert tokens == continuation(2, 25)
    assert max(model.window_rows) == 1 + depth
    if wrong == "always":
        assert ended.usage.accepted_drafts == 0
        assert ended.usage.windows == 24
    if wrong == "never":
        assert ended.usage.accepted_drafts == ended.usage.drafted_tokens
        assert ended.usage.windows == -(-24 // (depth + 1))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_draft_layer_follows_the_text_and_forgets_its_guesses(depth: int) -> None:
    head = FakeHead()
    model = FakeModel(draft_head=head)
    prompt = [3] * 130
    tokens, _ = run(Served(model, EngineSettings(drafts=depth, chunk_rows=64)), make_request(prompt, 9))
    if depth == 0:
        assert head.states == []  # nothing is drafted: the layer is not run at all
    else:
        assert head.states[0].tokens == (prompt + tokens)[1:-1]  # the last token belongs to a row that is not there yet


def test_drawn_reply_is_the_same_with_drafts_and_depends_on_the_seed() -> None:
    replies = {}
    for seed in (1, 2):
        for depth in (0, 2, 3):
            engine = Served(FakeModel(draft_head=FakeHead()), EngineSettings(drafts=depth))
            options: dict[str, Any] = {"temperature": 1.5, "seed": seed, "frequency_penalty": 0.5}
            replies[seed, depth] = run(engine, make_request([5], 40, **options))[0]
    assert replies[1, 0] == replies[1, 2] == replies[1, 3]
    assert replies[2, 0] == replies[2, 2] == replies[2, 3]
    assert replies[1, 0] != replies[2, 0]


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("place", [1, 2, 5, 6])
def test_stop_token_ends_the_reply_and_is_its_last_token(depth: int, place: int) -> None:
    expected = continuation(2, place)
    model = FakeModel(draft_head=FakeHead(lambda _: False))
    engine = Served(model, EngineSettings(drafts=depth))
    tokens, ended = run(engine, make_request([2], 20, stop=frozenset(expected[-1:])))
    assert tokens == expected
    assert ended.reason is FinishReason.STOP
    assert ended.usage.completion_tokens == place
    assert model.states[0].tokens == [2, *expected[:-1]]  # drafts behind the end were right, but are no part of it


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5])
def test_length_ends_the_reply_exactly(depth: int, max_tokens: int) -> None:
    engine = Served(FakeModel(draft_head=FakeHead(lambda _: False)), EngineSettings(drafts=depth))
    tokens, ended = run(engine, make_request([2], max_tokens))
    assert tokens == continuation(2, max_tokens)
    assert ended.reason is FinishReason.LENGTH


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_context_ends_the_reply_when_it_is_full(depth: int, max_tokens: int | None) -> None:
    model = FakeModel(max_position=40, draft_head=FakeHead())
    tokens, ended = run(Served(model, EngineSettings(drafts=depth)), make_request([2] * 30, max_tokens))
    assert len(tokens) == 10
    assert ended.reason is FinishReason.LENGTH


@pytest.mark.parametrize("prompt_tokens", [20, 21, 500])
def test_prompt_that_leaves_no_room_is_refused_with_both_numbers(prompt_tokens: int) -> None:
    engine = Served(FakeModel(), EngineSettings(context=20))
    with pytest.raises(RequestError) as caught:
        engine.check(make_request([1] * prompt_tokens))
    assert f"{prompt_tokens} tokens" in str(caught.value)
    assert "holds 20" in str(caught.value)
    engine.check(make_request([1] * 19))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (make_request([]), "the prompt is empty"),
        (make_request([VOCABULARY]), f"token id {VOCABULARY} is not in the vocabulary"),
        (make_request([-1]), "token id -1"),
        (make_request([1], logit_bias={99: 1.0}), "logit_bias names token id 99"),
    ],
)
def test_request_that_cannot_run_is_refused(request_: TokenRequest, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Served(FakeModel(), EngineSettings()).check(request_)


def test_cancel_before_reading_gives_no_token() -> None:
    control = RunControl()
    control.cancel()
    tokens, ended = run(Served(FakeModel(), EngineSettings()), make_request([1], 5), control)
    assert (tokens, ended.reason) == ([], FinishReason.CANCELLED)


def test_cancel_between_chunks_ends_reading() -> None:
    model = FakeModel()
    control = RunControl(lambda stage, done, total: control.cancel() if done else None)
    tokens, ended = run(Served(model, EngineSettings(chunk_rows=64)), make_request([1] * 200, 5), control)
    assert (tokens, ended.reason, model.read_rows) == ([], FinishReason.CANCELLED, [64])


def test_cancel_between_windows_keeps_what_came() -> None:
    engine = Served(FakeModel(), EngineSettings())
    control = RunControl()
    events = engine.run(make_request([2], 50), control)
    first = next(events)
    control.cancel()
    rest = list(events)
    assert isinstance(first, TokensDrawn)
    assert [type(event) for event in rest] == [RunEnded]
    assert isinstance(rest[0], RunEnded)
    assert rest[0].reason is FinishReason.CANCELLED
    assert rest[0].usage.completion_tokens == 1


def test_failure_of_the_model_ends_the_run_with_its_sentence() -> None:
    engine = Served(FakeModel(fails_at=5), EngineSettings())
    tokens, ended = run(engine, make_request([2, 2], 50))
    assert tokens == continuation(2, 4)
    assert ended.reason is FinishReason.ERROR
    assert ended.error is not None
    assert "not finite" in ended.error


def test_out_of_memory_ends_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel()

    def fail(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr(model, "window", fail)
    _, ended = run(Served(model, EngineSettings()), make_request([2], 5))
    assert ended.reason is FinishReason.ERROR
    assert ended.error is not None
    assert "main memory ran out while the engine ran" in ended.error


def test_other_failures_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel()

    def fail(*_: object) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(model, "window", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        run(Served(model, EngineSettings()), make_request([2], 5))


def test_two_runs_may_take_turns() -> None:
    engine = Served(FakeModel(), EngineSettings())
    runs: list[Iterator[TokensDrawn | RunEnded]] = [engine.run(make_request([t], 6), RunControl()) for t in (2, 9)]
    replies: list[list[int]] = [[], []]
    for _ in range(6):
        for reply, events in zip(replies, runs, strict=True):
            event = next(events)
            assert isinstance(event, TokensDrawn)
            reply += [draw.token_id for draw in event.draws]
    assert replies == [continuation(2, 6), continuation(9, 6)]
