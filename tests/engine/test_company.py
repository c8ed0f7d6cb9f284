"""Several requests on a model whose every answer is known: windows they share, failures they do not."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from strata.engine.engine import TokenEngine
from strata.engine.messages import Drawn, Ended, FromEngine, PromptRead
from strata.engine.request import TokenRequest
from strata.engine.slot import Slot
from strata.engine.steps import Abandon, Open, Read
from strata.errors import RequestError
from strata.models.base import LogitRows, Output, Segment, WindowResult
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.logprobs import token_logprob
from strata.sampling.options import SamplingOptions
from strata.scheduler.due import Limits
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings
from strata.types import FinishReason
from tests.engine.fake_model import FakeHead, FakeModel, continuation, rows_of


def serve(
    model: FakeModel, requests: Sequence[TokenRequest], slots: int = 4, **settings: Any
) -> tuple[list[list[int]], list[Ended], list[FromEngine]]:
    """Tokens and end of each request, and every event."""
    values = EngineSettings(chunk_rows=64, **settings)
    scheduler = Scheduler(TokenEngine(model, values), Limits.of(values, slots, values.cpu_chunk_rows))
    for number, request in enumerate(requests):
        scheduler.submit(number, request)
    events: list[FromEngine] = []
    while scheduler.has_work:
        events += scheduler.turn()
    tokens: list[list[int]] = [[] for _ in requests]
    ends = {}
    for event in events:
        if isinstance(event, Drawn):
            tokens[event.request_id] += [draw.token_id for draw in event.draws]
        elif isinstance(event, Ended):
            ends[event.request_id] = event
    return tokens, [ends[number] for number in range(len(requests))], events


def ask(prompt: list[int], max_tokens: int = 6, **options: Any) -> TokenRequest:
    return TokenRequest(tuple(prompt), SamplingOptions(max_tokens=max_tokens, **options))


def test_replies_under_way_share_a_window() -> None:
    model = FakeModel()
    tokens, _, _ = serve(model, [ask([token], 20) for token in (2, 9, 4)])
    assert tokens == [continuation(token, 20) for token in (2, 9, 4)]
    assert max(model.window_rows) == 3
    assert len(model.window_rows) < 3 * 19


def test_a_window_has_no_more_rows_than_fit() -> None:
    model = FakeModel(draft_head=FakeHead())
    tokens, _, _ = serve(model, [ask([token], 12) for token in range(12)], slots=12, drafts=8)
    assert tokens == [continuation(token, 12) for token in range(12)]
    assert max(model.window_rows) <= 32


def test_a_failure_in_a_shared_window_ends_only_its_own_request() -> None:
    model = FakeModel(fails_at=5)
    tokens, ends, _ = serve(model, [ask([2, 2], 20), ask([3] * 20, 20)])
    assert tokens == [continuation(2, 4), continuation(3, 20)]
    assert [end.reason for end in ends] == [FinishReason.ERROR, FinishReason.LENGTH]
    assert "not finite" in (ends[0].error or "")


def test_a_choice_that_fails_ends_only_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of a shared window has no finite number: the other replies are committed as if nothing had been."""
    model = FakeModel()
    window = model.window

    def spoil(segments: Sequence[Segment]) -> WindowResult:
        made = window(segments)
        for row, segment in enumerate(segments):
            if segment.state.position == 6:
                made.output.logits[row] = float("nan")
        return made

    monkeypatch.setattr(model, "window", spoil)
    tokens, ends, _ = serve(model, [ask([2, 2], 20), ask([3] * 20, 20)])
    assert tokens == [continuation(2, 5), continuation(3, 20)]
    assert [end.reason for end in ends] == [FinishReason.ERROR, FinishReason.LENGTH]


def test_a_window_is_committed_once_for_all_its_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    model, committed = FakeModel(), []
    commit = model.commit

    def note(window: WindowResult, accepted_rows: Sequence[int]) -> None:
        committed.append(len(accepted_rows))
        commit(window, accepted_rows)

    monkeypatch.setattr(model, "commit", note)
    tokens, _, _ = serve(model, [ask([2, 2], 20), ask([3] * 20, 20), ask([4], 20)])
    assert tokens == [continuation(2, 20), continuation(3, 20), continuation(4, 20)]
    assert committed == [min(3, rows) for rows in model.window_rows]
    assert 3 in committed


def test_memory_that_runs_out_in_a_commit_ends_the_replies_of_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel()
    commit = model.commit

    def fail(window: WindowResult, accepted_rows: Sequence[int]) -> None:
        if len(accepted_rows) == 2:
            raise MemoryError
        commit(window, accepted_rows)

    monkeypatch.setattr(model, "commit", fail)
    tokens, ends, _ = serve(model, [ask([2], 20), ask([3], 20), ask([4], 20)], slots=2)
    assert tokens[2] == continuation(4, 20)
    assert [end.reason for end in ends] == [FinishReason.ERROR, FinishReason.ERROR, FinishReason.LENGTH]
    assert all("main memory ran out" in (end.error or "") for end in ends[:2])


def test_memory_that_runs_out_in_a_read_ends_only_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel()
    read = model.read

    def fail(segments: Sequence[Segment], logit_rows: LogitRows = LogitRows.LAST) -> Output:
        if segments[0].state.position == 128:
            raise MemoryError
        return read(segments, logit_rows)

    monkeypatch.setattr(model, "read", fail)
    tokens, ends, _ = serve(model, [ask([2], 20), ask([3] * 200, 20), ask([4], 20)])
    assert tokens == [continuation(2, 20), [], continuation(4, 20)]
    assert "main memory ran out" in (ends[1].error or "")
    assert not ends[1].is_callers_mistake


def test_a_read_that_cannot_be_given_up_ends_only_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no memory for the way back to the last point: the slot is emptied, and can be taken again."""

    def fail(self: Slot) -> None:
        raise MemoryError

    monkeypatch.setattr(Slot, "abandon_read", fail)
    model = FakeModel()
    engine = TokenEngine(model, EngineSettings(chunk_rows=128))
    asked = ask([3] * 200, 20)
    engine.run(Open(0, asked))
    while engine.run(Read(0, 128, (64,)))[-1].is_under_way:
        pass
    engine.run(Read(0, 200))
    (told,) = engine.run(Abandon(0))
    assert "main memory ran out" in (told.error or "")
    assert len(model.released) == 1 and engine.memory()["states"] == 0
    assert engine.run(Open(0, asked))[-1].error is None


@pytest.mark.parametrize("tokens", [1, 2, 64, 65, 150])
@pytest.mark.parametrize("drafts", [0, 2])
def test_log_probabilities_of_a_prompt(tokens: int, drafts: int) -> None:
    prompt = [(place * 7) % 32 for place in range(tokens)]
    request = TokenRequest(tuple(prompt), SamplingOptions(max_tokens=5), prompt_logprobs=2)
    (reply,), _, events = serve(FakeModel(draft_head=FakeHead()), [request], drafts=drafts)
    assert reply == continuation(prompt[-1], 5)
    (told,) = [event.logprobs for event in events if isinstance(event, PromptRead)]
    assert [draw.token_id for draw in told] == prompt
    assert told[0].logprob is None
    rows = rows_of(torch.tensor(prompt[:-1]))
    for draw, row in zip(told[1:], rows, strict=True):
        assert (draw.logprob, draw.top_logprobs) == token_logprob(row, draw.token_id, 2)


def test_log_probabilities_are_read_and_not_remembered() -> None:
    """A prompt that a slot holds already is read again in full, since its rows' logits were not kept."""
    prompt = [(place * 7) % 32 for place in range(150)]
    plain = ask(prompt, 5)
    wanted = TokenRequest(tuple(prompt), SamplingOptions(max_tokens=5), prompt_logprobs=0)
    _, ends, events = serve(FakeModel(), [plain, wanted], slots=1)
    assert ends[1].usage.cached_tokens == 0
    (told,) = [event for event in events if isinstance(event, PromptRead)]
    assert len(told.logprobs) == 150


def test_what_would_need_what_is_missing_is_refused() -> None:
    engine = TokenEngine(FakeModel(), EngineSettings())
    with pytest.raises(RequestError, match="need a seed"):
        engine.check(ask([1], temperature=1.0))
    with pytest.raises(RequestError, match="without grammars"):
        engine.check(TokenRequest((1,), SamplingOptions(), grammar=GrammarSpec(GrammarKind.REGEX, "a")))


def test_memory_in_use_is_that_of_the_slots() -> None:
    values = EngineSettings()
    engine = TokenEngine(FakeModel(), values)
    scheduler = Scheduler(engine, Limits.of(values, 2, values.cpu_chunk_rows))
    scheduler.submit(1, ask([1, 2, 3], 4))
    while scheduler.has_work:
        scheduler.turn()
    assert engine.memory() == {"states": 8 * 6, "checkpoints": 0}
    engine.forget_all()
    assert engine.memory() == {"states": 0, "checkpoints": 0}
