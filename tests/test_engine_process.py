"""The real engine in its process: the answers of this one, cancels in every phase, many requests, memory that stays."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.api import Engine
from strata.engine.client import EngineProcess
from strata.engine.messages import Cancel, Drawn, Ended, FromEngine, Load, ModelFacts, ReadProgress, Ready, Submit
from strata.engine.request import TokenRequest
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.text.tokenizer import tokenizer_from_files
from strata.types import FinishReason, TextPiece

SRC = Path(__file__).parents[1] / "src"
SETTINGS = EngineSettings(threads=1, chunk_rows=64, slots=4)
SOON = 60.0


class Running:
    """A process that is ready, and the numbers of its requests."""

    def __init__(self, model: Path) -> None:
        environment = dict(os.environ, PYTHONPATH=str(SRC))
        self.process = EngineProcess.start(Load(str(model), SETTINGS), environment)
        self.number = 0
        ready = self.until(lambda message: isinstance(message, Ready))[-1]
        assert isinstance(ready, Ready)
        self.facts: ModelFacts = ready.facts

    def submit(self, prompt: list[int], max_tokens: int = 5, grammar: GrammarSpec | None = None) -> int:
        self.number += 1
        options = SamplingOptions(max_tokens=max_tokens, ignore_eos=True, logprobs=1)
        self.process.send(Submit(self.number, TokenRequest(tuple(prompt), options, grammar=grammar)))
        return self.number

    def until(self, is_reached: object) -> list[FromEngine]:
        """Every message up to the one for which that is so."""
        messages: list[FromEngine] = []
        while True:
            message = self.process.receive(SOON)
            assert message is not None, f"nothing came for {SOON:.0f} seconds behind {messages[-3:]}"
            messages.append(message)
            if is_reached(message):  # type: ignore[operator]
                return messages

    def until_ended(self, *numbers: int) -> list[FromEngine]:
        """Every message until all of the requests have ended."""
        open_ones = set(numbers)

        def is_last(message: FromEngine) -> bool:
            if isinstance(message, Ended):
                open_ones.discard(message.request_id)
            return not open_ones

        return self.until(is_last)

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text("utf-8").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def running(tiny_model: Path) -> Iterator[Running]:
    started = Running(tiny_model)
    yield started
    started.process.kill()


def draws_of(messages: list[FromEngine], number: int) -> list[tuple[int, float | None]]:
    drawn = [message for message in messages if isinstance(message, Drawn) and message.request_id == number]
    return [(draw.token_id, draw.logprob) for message in drawn for draw in message.draws]


def ended_of(messages: list[FromEngine], number: int) -> Ended:
    (found,) = [message for message in messages if isinstance(message, Ended) and message.request_id == number]
    return found


def text(count: int, salt: int) -> list[int]:
    return [(place * 7 + salt * 131) % 5000 + 300 for place in range(count)]


def test_it_tells_what_it_serves(running: Running, tiny_model: Path) -> None:
    facts = running.facts
    assert (facts.name, facts.family, facts.context, facts.slots) == (tiny_model.name, "qwen4_exp", 4096, 4)
    assert facts.parameters > 100_000
    assert facts.weight_bytes > facts.parameters  # of which the draft layer is not read
    assert facts.slot_bytes > 100_000
    tokenizer = tokenizer_from_files(facts.tokenizer)
    with Engine(tiny_model) as engine:
        assert tokenizer.encode("The harbour <|im_end|>") == engine.tokenize("The harbour <|im_end|>")


def test_answers_are_those_of_this_process(running: Running, tiny_model: Path) -> None:
    prompts = [text(150, 1), text(70, 2), text(5, 3)]
    numbers = [running.submit(prompt, 6) for prompt in prompts]
    messages = running.until_ended(*numbers)
    with Engine(tiny_model, settings=None, threads=1) as engine:
        for number, prompt in zip(numbers, prompts, strict=True):
            reply = engine.generate(prompt, SamplingOptions(max_tokens=6, ignore_eos=True, logprobs=1))
            pieces = [piece for piece in reply if isinstance(piece, TextPiece) and piece.token_id is not None]
            assert draws_of(messages, number) == [(piece.token_id, piece.logprob) for piece in pieces]


@pytest.mark.parametrize("phase", ["waiting", "reading", "decoding", "ended"])
def test_cancel_in_every_phase(running: Running, phase: str) -> None:
    others = [running.submit(text(200, 10 + n), 3000) for n in range(4)] if phase == "waiting" else []
    number = running.submit(text(2000, 5), 2000)
    if phase == "reading":
        running.until(lambda message: isinstance(message, ReadProgress) and message.request_id == number)
    if phase in ("decoding", "ended"):
        running.until(lambda message: isinstance(message, Drawn) and message.request_id == number)
    running.process.send(Cancel(number))
    last = ended_of(running.until_ended(number), number)
    assert (last.reason, last.error) == (FinishReason.CANCELLED, None)
    assert (last.usage.completion_tokens > 0) == (phase in ("decoding", "ended"))
    if phase == "ended":
        running.process.send(Cancel(number))
    for other in others:
        running.process.send(Cancel(other))
    if others:
        running.until_ended(*others)
    after = running.submit(text(20, 6))
    assert ended_of(running.until_ended(after), after).reason is FinishReason.LENGTH


def test_two_hundred_requests_at_once(running: Running) -> None:
    numbers = [running.submit(text(1 + n % 30, n), 2) for n in range(200)]
    for number in numbers[::3]:
        running.process.send(Cancel(number))
    messages = running.until_ended(*numbers)
    reasons = {number: ended_of(messages, number).reason for number in numbers}
    assert all(reasons[number] is FinishReason.LENGTH for number in numbers if number not in numbers[::3])
    assert set(reasons.values()) <= {FinishReason.LENGTH, FinishReason.CANCELLED}


def test_requests_that_cannot_be_served_are_their_callers_mistake(running: Running) -> None:
    for prompt, words in (([], "empty"), ([1] * 5000, "5000 tokens and the context holds 4096"), ([10**6], "not in")):
        number = running.submit(prompt)
        last = ended_of(running.until_ended(number), number)
        assert last.is_callers_mistake
        assert words in (last.error or "")


def test_a_grammar_is_enforced(running: Running) -> None:
    pytest.importorskip("llguidance")
    tokenizer = tokenizer_from_files(running.facts.tokenizer)
    good = running.submit(text(20, 1), 40, GrammarSpec(GrammarKind.REGEX, "(ab){2}[0-9]"))
    bad = running.submit(text(20, 1), 40, GrammarSpec(GrammarKind.REGEX, "(ab"))
    messages = running.until_ended(good, bad)
    assert ended_of(messages, good).reason is FinishReason.STOP
    reply = tokenizer.decode([token for token, _ in draws_of(messages, good)])
    assert (reply[:4], reply[4].isdigit(), len(reply)) == ("abab", True, 5)
    assert ended_of(messages, bad).is_callers_mistake


def test_signals_for_the_group_are_left_to_the_server(running: Running) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(running.process.pid, number)
    after = running.submit(text(20, 6))
    assert ended_of(running.until_ended(after), after).reason is FinishReason.LENGTH


def test_memory_stays_over_cancelled_reads(running: Running) -> None:
    def read_and_leave(count: int) -> None:
        for n in range(count):
            number = running.submit(text(1000, n), 2)
            running.until(lambda m, number=number: isinstance(m, ReadProgress) and m.request_id == number)
            running.process.send(Cancel(number))
            running.until_ended(number)

    read_and_leave(40)
    before = running.resident_bytes()
    read_and_leave(120)
    assert running.resident_bytes() - before < 8 << 20
