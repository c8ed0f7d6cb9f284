"""The engine as a Python user calls it: the same text for the same call, text and tokens that agree, clean ends."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import strata
from strata.api import Generation, default_options
from strata.engine.request import RunEnded, TokenRequest, TokensDrawn
from strata.errors import EngineError, ModelError, RequestError, SettingsError
from strata.sampling.draw import Draw
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings, GenerationSettings, Settings
from strata.text.tokenizer import load_tokenizer
from strata.types import Finished, FinishReason, Message, TextPiece, Usage
from tests.house.source_tree import ROOT

QUESTION = [Message("user", "What does harbour mean?")]


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[strata.Engine]:
    with strata.Engine(tiny_model) as opened:
        yield opened


def options(max_tokens: int = 12, **more: Any) -> SamplingOptions:
    return SamplingOptions(max_tokens=max_tokens, **more)


def test_same_call_gives_the_same_text(engine: strata.Engine) -> None:
    assert engine.chat(QUESTION, options()).text() == engine.chat(QUESTION, options()).text() != ""


def test_seed_is_honoured_and_a_fresh_one_is_reported(engine: strata.Engine) -> None:
    first = engine.chat(QUESTION, options(temperature=1.0))
    text = first.text()
    assert first.seed is not None
    assert engine.chat(QUESTION, options(temperature=1.0, seed=first.seed)).text() == text
    assert engine.chat(QUESTION, options(temperature=1.0, seed=first.seed + 1)).text() != text


def test_drafts_do_not_change_the_text(tiny_model: Path, engine: strata.Engine) -> None:
    drawn = options(20, temperature=0.7, seed=11, repetition_penalty=1.1)
    expected = [engine.chat(QUESTION, kind).text() for kind in (options(20), drawn)]
    for depth in (1, 2, 3):
        with strata.Engine(tiny_model, drafts=depth) as drafting:
            replies = [drafting.chat(QUESTION, kind) for kind in (options(20), drawn)]
            assert [reply.text() for reply in replies] == expected
            for reply in replies:
                assert reply.finished is not None
                assert reply.finished.usage.drafted_tokens > 0


def test_size_of_a_chunk_changes_no_bit(tiny_model: Path, engine: strata.Engine) -> None:
    prompt = [(7 * place) % 5000 + 300 for place in range(300)]
    expected = list(engine.generate(prompt, options(6, logprobs=2)))[:-1]
    settings = Settings(engine=EngineSettings(threads=1, chunk_rows=64))
    with strata.Engine(tiny_model, settings=settings) as small_chunks:
        assert list(small_chunks.generate(prompt, options(6, logprobs=2)))[:-1] == expected


def test_pieces_joined_are_the_text_of_the_tokens(engine: strata.Engine) -> None:
    *pieces, finished = list(engine.generate("A harbour is", options(16)))
    assert isinstance(finished, Finished)
    tokens = [piece.token_id for piece in pieces if isinstance(piece, TextPiece) and piece.token_id is not None]
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == engine.detokenize(tokens)
    assert finished.usage.completion_tokens == len(tokens) == 16
    assert finished.usage.prompt_tokens == len(engine.tokenize("A harbour is"))
    assert finished.usage.read_seconds > 0
    assert finished.usage.decode_seconds > 0


def test_text_and_its_token_ids_are_the_same_prompt(engine: strata.Engine) -> None:
    text = "The port of"
    assert engine.generate(text, options()).text() == engine.generate(engine.tokenize(text), options()).text()


def test_token_ids_may_be_of_any_integer_type_and_nothing_else(engine: strata.Engine) -> None:
    ids: Any = torch.tensor(engine.tokenize("The port of"))
    assert engine.generate(ids, options()).text() == engine.generate("The port of", options()).text()
    wrong: Any
    for wrong in ([1.5], ["a"], [None], 7, b"bytes", None, {5: "a"}):
        with pytest.raises(RequestError, match=r"prompt.* token ids") as caught:
            engine.generate(wrong)
        assert "object" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_messages_are_checked_before_they_are_rendered(engine: strata.Engine) -> None:
    wrong: Any
    for wrong, words in (
        ([{"role": "user", "content": {"a": 1}}], r"messages\[0\]\.content is of type dict"),
        ([*QUESTION, {"role": "user"}], r"messages\[1\]\.content is missing"),
        ([Message("x", "y")], r"messages\[0\]\.role is 'x'"),
        ("What?", "messages is of type str"),
        (QUESTION[0], "messages is of type Message"),
        ([], "messages is empty"),
    ):
        with pytest.raises(RequestError, match=words):
            engine.chat(wrong)
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0].content}]}]
    assert engine.chat(parts, options()).text() == engine.chat(iter(QUESTION), options()).text()  # type: ignore[arg-type]


def test_options_of_another_type_are_refused(engine: strata.Engine) -> None:
    wrong: Any = {"max_tokens": 3}
    with pytest.raises(RequestError, match="of type dict; it must be SamplingOptions"):
        engine.generate("A", wrong)


def test_logprobs_come_when_they_are_asked_for(engine: strata.Engine) -> None:
    asked = next(engine.generate("A", options(1, logprobs=3)))
    plain = next(engine.generate("A", options(1)))
    assert isinstance(asked, TextPiece)
    assert isinstance(plain, TextPiece)
    assert (asked.token_id, asked.logprob) == asked.top_logprobs[0]  # greedy: the likeliest
    assert len(asked.top_logprobs) == 3
    assert (plain.token_id, plain.logprob, plain.top_logprobs) == (asked.token_id, None, ())


def test_prompt_longer_than_the_context_is_refused_with_both_numbers(tiny_model: Path) -> None:
    with strata.Engine(tiny_model, context=20) as small:
        count = len(small.tokenize("harbour " * 50))
        with pytest.raises(RequestError, match=rf"{count} tokens.*holds 20"):
            small.generate("harbour " * 50)
        reply = small.generate([5] * 15)
        reply.text()
        assert reply.finished is not None
        assert (reply.finished.reason, reply.finished.usage.completion_tokens) == (FinishReason.LENGTH, 5)


def test_context_beyond_the_model_is_refused_with_both_numbers(tiny_model: Path) -> None:
    with pytest.raises(SettingsError, match=r"9999999.*4096"):
        strata.Engine(tiny_model, context=9999999)


def test_cancel_from_another_thread_ends_the_reply(engine: strata.Engine) -> None:
    reply = engine.generate("A", options(4000, ignore_eos=True))
    next(reply)
    thread = threading.Thread(target=reply.cancel)
    thread.start()
    thread.join()
    reply.text()
    assert reply.finished is not None
    assert reply.finished.reason is FinishReason.CANCELLED


def test_progress_tells_of_loading_and_of_reading(tiny_model: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    with strata.Engine(tiny_model, progress=lambda stage, *n: seen.setdefault(stage, []).append(n)) as watched:
        watched.generate("A", options(1)).text()
    seldom = "packing the experts"  # only where the C++ library computes windows
    assert [stage for stage in seen if stage != seldom] == ["loading the model", "reading the prompt"]
    for steps in seen.values():
        done = [step[0] for step in steps]
        assert done == sorted(done)
        assert steps[-1][0] == steps[-1][1]


def test_arguments_of_an_engine_are_refused_by_name(tiny_model: Path) -> None:
    wrong: Any
    for wrong, words in (
        ({"threads": 0}, r"setting threads: 0 \(from threads=\.\.\. of Engine\) does not work; a whole number from 1"),
        ({"slots": "many"}, r"setting slots: 'many' \(from slots="),
        ({"bogus": 1}, "Engine has no setting bogus; there are device, devices"),
        ({"temperature": 1.0}, "Engine has no setting temperature"),
        ({"threads": 1, "settings": Settings()}, "give settings, or threads: not both"),
    ):
        with pytest.raises(SettingsError, match=words):
            strata.Engine(tiny_model, **wrong)
    wrong = 5
    with pytest.raises(ModelError, match="model is 5; it must be the path"):
        strata.Engine(wrong)


def test_any_engine_setting_may_be_an_argument(tiny_model: Path) -> None:
    with strata.Engine(str(tiny_model), slots=2, chunk_rows=64) as opened:
        assert (opened.settings.engine.slots, opened.settings.engine.chunk_rows) == (2, 64)


def test_text_may_be_asked_for_again_and_is_the_whole_reply(engine: strata.Engine) -> None:
    reply = engine.generate("The port of", options())
    first = next(reply)
    assert isinstance(first, TextPiece)
    text = reply.text()
    assert text == reply.text() == engine.generate("The port of", options()).text()
    assert text.startswith(first.text)


def test_closing_the_engine_ends_open_replies(tiny_model: Path) -> None:
    opened = strata.Engine(tiny_model, slots=3)
    ended, waiting, unread = (opened.generate("The port of", options()) for _ in range(3))
    text = ended.text()
    next(waiting)
    opened.close()
    for reply in (waiting, unread):
        with pytest.raises(RequestError, match="closed"):
            next(reply)
        with pytest.raises(RequestError, match="closed"):
            reply.text()
        assert reply.finished is None
    assert ended.text() == text != ""


def test_closing_the_engine_reaches_a_reply_that_another_thread_waits_for(tiny_model: Path) -> None:
    opened = strata.Engine(tiny_model)
    reply = opened.generate("A", options(4000, ignore_eos=True))
    told: list[str] = []
    began = threading.Event()

    def read() -> None:
        try:
            for _ in reply:
                began.set()
        except RequestError as refusal:
            told.append(str(refusal))

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(60)
    opened.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(told) == 1
    assert "closed" in told[0]


def test_closed_engine_says_so(tiny_model: Path) -> None:
    opened = strata.Engine(tiny_model)
    opened.close()
    opened.close()
    with pytest.raises(RequestError, match="closed"):
        opened.generate("A")


def test_the_readmes_example_runs_and_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    example = (ROOT / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(example, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert re.search(r"[a-z]\nstop, [0-9]+ tokens a second\n", said), said
    assert "FinishReason" not in said


def test_default_options_are_those_of_sampling() -> None:
    assert default_options(GenerationSettings(max_tokens=None)) == SamplingOptions()


def test_missing_shipped_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("strata.models_shipped.default_path", lambda: tmp_path)
    with pytest.raises(ModelError, match="--model"):
        strata.Engine()


# What follows drives a Generation with events of our own, to place texts and ends exactly.


def reply_of(
    model: Path, windows: list[str], end: FinishReason = FinishReason.LENGTH, error: str | None = None, **more: Any
) -> Generation:
    """A reply that comes in windows of these texts."""
    tokenizer = load_tokenizer(model)
    events: list[TokensDrawn | RunEnded] = []
    total = 0
    for text in windows:
        draws = tuple(Draw(token) for token in tokenizer.encode(text))
        total += len(draws)
        events.append(TokensDrawn(draws, Usage(1, total, 0, 0, 0, 0.0, 0.0)))
    events.append(RunEnded(end, Usage(1, total, 0, 0, 0, 0.0, 0.0), error))
    request = TokenRequest((1,), SamplingOptions(**more), frozenset())
    return Generation(request, (event for event in events), tokenizer, lambda: None)


@pytest.mark.parametrize("cut", range(1, 12))
def test_stop_string_ends_the_text_wherever_windows_cut_it(tiny_model: Path, cut: int) -> None:
    text = "one\nEND two"
    reply = reply_of(tiny_model, [text[:cut], text[cut:]], stop=("\nEND",))
    assert reply.text() == "one"
    assert reply.finished is not None
    assert (reply.finished.reason, reply.finished.stop_string) == (FinishReason.STOP, "\nEND")


def test_tokens_behind_a_stop_string_are_not_counted(tiny_model: Path) -> None:
    whole = reply_of(tiny_model, ["one STOP two three four"], stop=("STOP",))
    whole.text()
    before = reply_of(tiny_model, ["one STOP"])
    before.text()
    assert whole.finished is not None
    assert before.finished is not None
    assert whole.finished.usage.completion_tokens <= before.finished.usage.completion_tokens + 1


def test_text_held_back_for_a_stop_comes_out_at_the_end(tiny_model: Path) -> None:
    reply = reply_of(tiny_model, ["one EN"], stop=("END",))
    assert reply.text() == "one EN"
    assert reply.finished is not None
    assert reply.finished.reason is FinishReason.LENGTH


def test_characters_cut_by_tokens_come_out_whole(tiny_model: Path) -> None:
    text = "snow ☃ and 漢字 and 🙂"
    pieces = [event.text for event in reply_of(tiny_model, [text]) if isinstance(event, TextPiece)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_engine_failure_raises_from_text_and_is_an_event_otherwise(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match="not finite"):
        reply_of(tiny_model, ["one"], FinishReason.ERROR, "the logits are not finite").text()
    *_, last = reply_of(tiny_model, ["one"], FinishReason.ERROR, "the logits are not finite")
    assert isinstance(last, Finished)
    assert (last.reason, last.error) == (FinishReason.ERROR, "the logits are not finite")
