"""A model over two processes reads and answers as over one stage; a process that is killed ends all requests."""

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.build import load_model
from strata.engine import stage_calls as calls
from strata.engine.device_windows import DeviceWindows
from strata.engine.engine import TokenEngine
from strata.engine.remote_joining import join, leave
from strata.engine.remote_loading import LedModel
from strata.engine.stage_line import StageLine
from strata.engine.stage_loading import LoadedStage
from strata.engine.windows_ahead import WindowsAhead
from strata.errors import DeviceLostError
from tests.engine import remote_stages
from tests.engine.remote_peer import free_port, started
from tests.engine.remote_stages import SLOTS, led, ranks_at
from tests.engine.served import SETTINGS, Served, ask

Peer = tuple[LoadedStage, list[StageLine], "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def peer(tiny_model: Path) -> Iterator[Peer]:
    port = free_port()
    with started(remote_stages.__name__, port, tiny_model) as other:
        joined = join(ranks_at(0, port), calls.ANSWERS, seconds=60)
        yield *led(joined, tiny_model), other
        other.kill()
        leave(joined)


@pytest.fixture(scope="module")
def alone(tiny_model: Path) -> TokenEngine:
    """The same model on one stage of this process."""
    settings = dataclasses.replace(remote_stages.SETTINGS, stages=False, device="auto", devices="cpu", groups=1)
    return load_model(tiny_model, settings).engine


def answers(served: Served) -> list[list[int]]:
    """Requests at once and one behind another, chosen by the device and by the host, going on from each other."""
    long = [3 + number % 50 for number in range(80)]
    for number in range(3):
        served.submit(number, ask([5 + number, 6, 7], 6, temperature=0.8, seed=number, top_k=5 * number))
    served.finish()
    one_by_one = [
        served.ask(ask(long, 4)),
        served.ask(ask([*long, 9, 9], 4)),  # from a point of another conversation
        served.ask(ask(long[:20], 5, repetition_penalty=1.3)),  # only the host knows what it repeats
    ]
    return [*(served.replies[number] for number in range(3)), *one_by_one]


def test_two_processes_give_the_tokens_of_one(peer: Peer, alone: TokenEngine) -> None:
    loaded, (line,), other = peer
    model = loaded.model
    assert isinstance(model, LedModel)
    assert len(model.groups) == 2
    assert model.chunk_rows == 64
    assert loaded.points.points > SLOTS  # the other process made room as well
    assert model.slots.parked.space.limit > 0
    ahead = [WindowsAhead(DeviceWindows(model, group)) for group in range(2)]
    theirs = Served(TokenEngine(model, SETTINGS, ahead=ahead, points=loaded.points), SLOTS)
    assert answers(theirs) == answers(Served(alone, SLOTS))
    assert theirs.engine.checkpoints()["hits"] >= 1
    model.stage.wait()
    assert model.arrivals == 0

    theirs.submit(100, ask([1, 2, 3], 50))
    theirs.turn()
    other.kill()
    with pytest.raises(DeviceLostError, match="the stage of rank 1 is lost"):
        theirs.finish()
    with pytest.raises(DeviceLostError, match="the stage of rank 1 is lost"):
        model.arrivals  # noqa: B018 - a property that tells it
    with pytest.raises(DeviceLostError, match="the stage of rank 1 is lost"):
        line.ask(calls.AskWait())
