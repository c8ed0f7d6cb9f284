"""Calls and answers cross between processes as they are, cut anywhere; other bytes make nothing."""

import json
import struct
from typing import Any

import pytest

from strata.engine import stage_calls as calls
from strata.engine.hand_off import Crosses, Crossing
from strata.engine.memory_plan import Budget, Budgets
from strata.engine.remote_wire import RemoteDecoder, RemoteWireError, encode
from strata.engine.stage_programs import Variant
from strata.engine.window_words import RowsPart
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart

WINDOW = Crossing(Crosses.WINDOW, 4, 1)
KEY = calls.PlainKey(2, 7)
START = ReplyStart(5, 7, 9, (1, 2), ChoiceOptions(0.1 + 0.2, 40, 0.95, float("-inf"), 2**63 + 1, 1))
BUDGETS = Budgets("a card", Budget(2**33, 2**32), Budget(2**36, 2**35, 2**34))
EVERY = [
    calls.LoadPart((13,), (BUDGETS, BUDGETS), 4, 8192, by_nccl=True),
    calls.SetPlan(3, (PlannedPart(0), PlannedPart(2, (5, 6))), 1),
    calls.SetReply(1, START),
    calls.EndReply(1),
    calls.SetRows(8, (RowsPart(1, 64, (3, 4)),)),
    calls.SetAccepted((1, 0)),
    calls.Run(Variant.FORWARD, 8),
    calls.Give(3, WINDOW),
    calls.Take(3, WINDOW, 1),
    calls.BeforeGiving(3),
    calls.AskLogits(8, 1, 3),
    calls.AskWait(),
    calls.WindowBegins(is_read=True),
    calls.WindowCutOff(),
    calls.WindowsForgotten(1),
    calls.AskLanded(),
    calls.SlotReset(0),
    calls.SlotCopied(0, 1, 64),
    calls.SlotSaved(0, KEY),
    calls.SlotRestored(0, calls.PlainKey(None, 3)),
    calls.PointMade(3),
    calls.PointDropped(3),
    calls.AskRoom(12),
    calls.AskParking(2**40),
    calls.SlotParked(1, 2, 64),
    calls.ParkedBrought(2, 0, 64, is_whole=True),
    calls.ParkedDropped(2),
    calls.AskMoves(),
    calls.ChunkBegins(6, 1, 64, (3, 4, 5), {"64": 2}, 3, counts=False),
    calls.AskChunkStep(),
    calls.ChunkGoesOn(7),
    calls.ChunkEnds(),
    calls.End("why"),
]
FACTS = calls.PartFacts(32, 100, True, 512, calls.KeptBytes(2**33, 1, 2, 3, 0.5))
ANSWERS = [
    calls.PartOffer(BUDGETS, {"slots": "None", "kv_kind": "'bf16'"}, "a host", "cuda:0", has_nccl=True),
    calls.PartLoaded(FACTS, ("a notice",)),
    calls.Answer(b"\x00\xff" * 5, "a notice", 3),
    calls.Answer(problem="why"),
    calls.CallFailed("why", True),
]
KNOWN = [type(each) for each in (*EVERY, *ANSWERS)]


def framed(header: Any) -> bytes:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<II", len(content), 0) + content


def test_there_is_an_example_of_every_call() -> None:
    assert {type(each) for each in EVERY} == set(calls.CALLS)
    assert {type(each) for each in ANSWERS} == set(calls.ANSWERS)


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_messages_cross_as_they_are_cut_anywhere(step: int) -> None:
    decoder, came = RemoteDecoder(KNOWN), []
    content = b"".join(map(encode, (*EVERY, *ANSWERS)))
    for first in range(0, len(content), step):
        decoder.feed(content[first : first + step])
        while (message := decoder.next()) is not None:
            came.append(message)
    assert came == [*EVERY, *ANSWERS]


@pytest.mark.parametrize(
    "header",
    [
        b"\x80\x05.",
        b"[" * 100_000,
        [],
        ["Popen", {}],
        ["EndReply", {}],
        ["EndReply", {"slot": "1"}],
        ["EndReply", {"slot": True}],
        ["EndReply", {"slot": 1, "more": 2}],
        ["EndReply", [1]],
        ["Run", {"variant": "delete", "bucket": 1}],
        ["SetRows", {"bucket": 1, "parts": {"0": 1}}],
        ["SetRows", {"bucket": 1, "parts": [{"slot": 1, "position": 2, "tokens": [1.5]}]}],
    ],
)
def test_other_bytes_are_refused(header: Any) -> None:
    decoder = RemoteDecoder(KNOWN)
    decoder.feed(framed(header))
    with pytest.raises(RemoteWireError, match="no message"):
        decoder.next()


def test_a_length_that_nobody_sends_is_refused_before_it_comes() -> None:
    decoder = RemoteDecoder(KNOWN)
    decoder.feed(struct.pack("<II", 5, 2**31))
    with pytest.raises(RemoteWireError, match="at most"):
        decoder.next()
