"""A stage's process ends as its leader says, tells why it fails, and begins again only behind a leader that is gone."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from strata import stage_rank
from strata.engine.remote_joining import Joined
from strata.engine.remote_line import Line
from strata.engine.remote_ranks import Ranks
from strata.engine.stage_calls import ANSWERS, CallFailed, End, KeptBytes, PartFacts, PartLoaded
from strata.engine.stage_process import ServedPart
from strata.errors import DeviceLostError, EngineError, ModelError
from strata.settings import EngineSettings

RANKS = Ranks(1, 2, 1, "here", 29500, is_hosted=True)
LOADED = PartLoaded(PartFacts(32, 100, False, 0, KeptBytes(1, 1, 1, 1, 1.0)))


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The other end; the part of the model is one that only waits."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(stage_rank, "join", lambda ranks, known: Joined(ranks, [Line(theirs, known)]))
    monkeypatch.setattr(stage_rank, "open_rank", lambda *_: SimpleNamespace(offer=1, plan=2, files=3, card=4, wishes=5))
    monkeypatch.setattr(stage_rank, "follow", lambda *_: None)
    monkeypatch.setattr(stage_rank, "load_following", lambda *_: (ServedPart((), None, {}), LOADED))  # type: ignore[arg-type]
    monkeypatch.setattr(stage_rank, "GONE_SECONDS", 0.2)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    line = Line(ours, ANSWERS)
    yield line
    line.close()
    for number, handler in before:
        signal.signal(number, handler)


def serve() -> list[str]:
    told: list[str] = []
    stage_rank.serve_rank(None, EngineSettings(stages=True), RANKS, told.append)
    return told


def failing(failure: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise failure

    return fail


def losing(line: Line, *, told: bool = False) -> Callable[..., str]:
    """The leader goes, and a tensor that does not come tells it before the line does."""

    def lose(*_: Any) -> str:
        if told:
            os.kill(os.getpid(), signal.SIGTERM)
        line.close()
        raise DeviceLostError("way 0 from rank 0 to rank 1: receiving failed")

    return lose


def test_it_serves_until_the_leader_ends_it(leader: Line) -> None:
    leader.send(End())
    assert serve() == ["stage 2 of 2 waits for rank 0 at here", "stage 2 of 2 is ready"]
    assert leader.receive() == LOADED


def test_why_the_leader_ends_is_this_processs_error(leader: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    leader.send(End("the card is lost"))
    with pytest.raises(EngineError, match="rank 0 ended: the card is lost"):
        serve()
    monkeypatch.setattr(stage_rank, "follow", lambda *_: End("the model does not fit"))
    with pytest.raises(EngineError, match="rank 0 ended: the model does not fit"):
        serve()


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ModelError("no such file"), CallFailed("no such file", is_users_mistake=True)),
        (EngineError("no memory"), CallFailed("no memory")),
        (KeyError("3"), CallFailed("KeyError: '3'")),
    ],
)
def test_a_failure_is_told_and_raised(
    leader: Line, monkeypatch: pytest.MonkeyPatch, failure: Exception, told: CallFailed
) -> None:
    def fail(*_: Any) -> Any:
        raise failure

    monkeypatch.setattr(stage_rank, "load_following", fail)
    with pytest.raises(type(failure)):
        serve()
    assert leader.receive() == told


@pytest.mark.parametrize("tells_first", ["the line", "a tensor"])
def test_a_leader_that_is_gone_may_come_again(leader: Line, monkeypatch: pytest.MonkeyPatch, tells_first: str) -> None:
    if tells_first == "a tensor":
        monkeypatch.setattr(stage_rank, "serve_part", losing(leader))
    else:
        leader.close()
    with pytest.raises(stage_rank.LeaderGone):
        serve()


def test_a_stage_that_was_told_to_end_waits_for_no_other_leader(leader: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_rank, "serve_part", losing(leader, told=True))
    with pytest.raises(EngineError, match="rank 0 is gone, and this stage was told to end"):
        serve()
