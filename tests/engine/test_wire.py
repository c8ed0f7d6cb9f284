"""Every message crosses the border as it is, cut anywhere; anything else is refused; it costs little."""

import os
import pickle
import time
from typing import Any

import pytest

from strata.engine import messages, wire
from strata.engine.request import TokenRequest
from strata.sampling.draw import Draw, TokenLogprob
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.types import FinishReason, Usage
from tests.engine.fake_process import FACTS

USAGE = Usage(3, 2, 1, 1, 1, 0.5, 0.25, 2, 0.1)
DRAW = Draw(7, -0.125, (TokenLogprob(7, -0.125), TokenLogprob(9, -3.0)))
REQUEST = TokenRequest(
    (1, 2, 3),
    SamplingOptions(temperature=0.5, seed=2**63 - 1, logit_bias={5: -1.5}, stop=("END",)),
    frozenset({4}),
    2,
    GrammarSpec(GrammarKind.LARK, 'start: "é"', begins_after=8),
    5,
)
EVERY = [
    messages.Load("somewhere", EngineSettings(threads=2, slots=3)),
    messages.Submit(1, REQUEST),
    messages.Cancel(1, 5),
    messages.Stop(),
    messages.Loading("reading", 1, 2),
    messages.Ready(FACTS, 1.5),
    messages.LoadFailed("no model", True),
    messages.ReadProgress(1, 64, 128, 0),
    messages.PromptRead(1, (Draw(1), DRAW)),
    messages.Drawn(1, (DRAW, Draw(2)), USAGE),
    messages.Ended(1, FinishReason.ERROR, USAGE, "why", True, ("a notice",)),
    messages.Statistics(1.0, 0.5, 1, 2, 3, 4, 5, 6, 7, (messages.SlotView(0, "idle", None, 1, 2, 3, 4, 0.5),)),
    messages.Pulse(2.5, "a window waits for the CPU"),
    messages.Crashed("why"),
]


def test_there_is_an_example_of_every_message() -> None:
    assert {type(message) for message in EVERY} == set(messages.ALL)


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_a_message_crosses_as_it_is(message: Any) -> None:
    decoder = wire.Decoder()
    decoder.feed(wire.encode(message))
    assert decoder.next() == message
    assert decoder.next() is None


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_messages_may_come_cut_anywhere(step: int) -> None:
    stream = b"".join(map(wire.encode, EVERY))
    decoder, seen = wire.Decoder(), []
    for start in range(0, len(stream), step):
        decoder.feed(stream[start : start + step])
        while (message := decoder.next()) is not None:
            seen.append(message)
    assert seen == EVERY


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.getpid, ()


@pytest.mark.parametrize("value", [Harmful(), messages.Submit(1, os.stat_result(range(10)))])  # type: ignore[arg-type]
def test_nothing_but_border_values_is_made(value: Any) -> None:
    decoder = wire.Decoder()
    decoder.feed(wire.encode(value))
    with pytest.raises(wire.WireError, match="no value of the border"):
        decoder.next()


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps(3)[:-1], b"\x80\x05\x95"])
def test_bytes_that_are_no_message_are_refused(content: bytes) -> None:
    decoder = wire.Decoder()
    decoder.feed(len(content).to_bytes(4, "little") + content)
    with pytest.raises(wire.WireError):
        decoder.next()


def test_tokens_of_a_window_take_little_time() -> None:
    """There and back; the best of some rounds, because others use this machine too."""
    drawn = messages.Drawn(1, (Draw(1), Draw(2)), USAGE)
    decoder = wire.Decoder()
    best = float("inf")
    for _ in range(20):
        begin = time.thread_time()
        for _ in range(100):
            decoder.feed(wire.encode(drawn))
            decoder.next()
        best = min(best, (time.thread_time() - begin) / 100)
    assert best < 50e-6
