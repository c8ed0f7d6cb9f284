"""Calls go to a stage in order, answers come to who asked, and a stage that is lost is told by the next call."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from strata.engine import stage_calls as calls
from strata.engine.remote_line import Line
from strata.engine.remote_stage import RemoteStage
from strata.engine.stage_line import StageLine
from strata.errors import DeviceLostError, EngineError, ModelError

FACTS = calls.PartFacts(32, 3, True, 0, calls.KeptBytes(1, 1, 1, 1, 1.0))


@pytest.fixture
def ends() -> Iterator[tuple[StageLine, Line]]:
    ours, theirs = socket.socketpair()
    other = Line(theirs, calls.CALLS)
    line = StageLine.open(1, Line(ours, calls.ANSWERS))
    yield line, other
    other.close()
    line.end()


def until_lost(line: StageLine) -> None:
    while True:
        line.require_well()
        time.sleep(0.01)


def test_calls_go_in_order_and_answers_come_to_who_asks(ends: tuple[StageLine, Line]) -> None:
    line, other = ends
    stage = RemoteStage(line, FACTS, "stage 2 of 2", group=1)
    rows = torch.rand(2, 3)
    stage.end_reply(4)
    came: list[Any] = []

    def answer() -> None:
        came.extend(other.receive() for _ in range(2))
        other.send(calls.Answer(rows.numpy().tobytes()))
        came.append(other.receive())
        other.send(calls.Answer(problem="expert 3 of layer 1 cannot be read"))

    thread = threading.Thread(target=answer)
    thread.start()
    assert torch.equal(stage.logits_on_host(8, 1, 3), rows)
    with pytest.raises(EngineError, match="stage of rank 1: expert 3") as failed:
        next(iter(stage.asked)).landed()
    assert not isinstance(failed.value, DeviceLostError)  # the request ends, and nothing else
    thread.join()
    assert came == [calls.EndReply(4), calls.AskLogits(8, 1, 3, 1), calls.AskLanded(1)]
    line.require_well()


def test_a_call_that_fails_there_is_told_here(ends: tuple[StageLine, Line]) -> None:
    line, other = ends
    line.tell(calls.EndReply(0))
    other.send(calls.CallFailed("the GPU failed"))
    with pytest.raises(DeviceLostError, match="stage of rank 1 is lost: the GPU failed"):
        until_lost(line)
    for tell_again in (lambda: line.ask(calls.AskWait()), line.explain):
        with pytest.raises(DeviceLostError, match="the GPU failed"):
            tell_again()


def test_a_users_mistake_stays_one(ends: tuple[StageLine, Line]) -> None:
    line, other = ends
    other.send(calls.CallFailed("there is no model at x", is_users_mistake=True))
    with pytest.raises(ModelError, match="no model at x"):
        line.next_message()


def test_a_stage_that_is_gone_or_silent_is_lost(ends: tuple[StageLine, Line]) -> None:
    with pytest.raises(DeviceLostError, match="has said nothing for 0 s"):
        ends[0].next_message(0.01)
    ours, theirs = socket.socketpair()
    gone = StageLine.open(2, Line(ours, calls.ANSWERS))
    threading.Timer(0.05, theirs.close).start()
    with pytest.raises(DeviceLostError, match=r"stage of rank 2 is lost: it(s connection is gone| has ended)"):
        gone.ask(calls.AskWait())


def test_an_end_is_no_loss(ends: tuple[StageLine, Line]) -> None:
    line, other = ends
    line.end("no more")
    assert other.receive() == calls.End("no more")
    time.sleep(0.05)
    line.require_well()
