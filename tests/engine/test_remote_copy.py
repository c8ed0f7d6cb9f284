"""Two processes come together, tensors cross on ways that do not wait for each other, and a loss is named."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from strata.engine import remote_line
from strata.engine.remote_copy import DistributedCopy, StagedCopy, open_channels
from strata.engine.remote_joining import Joined, join, leave
from strata.engine.remote_line import Hello, Line, LineLost, find_leader, open_lines
from strata.engine.remote_ranks import Ranks, ranks_of
from strata.errors import DeviceLostError, EngineError, SettingsError
from tests.engine import remote_peer
from tests.engine.remote_peer import free_port, started

STARTED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}


@pytest.fixture
def peer() -> Iterator[tuple[Joined, subprocess.Popen[bytes]]]:
    """This process as rank 0 and another one as rank 1."""
    port = free_port()
    with started(remote_peer.__name__, port) as other:
        joined = join(Ranks(0, 2, 0, "127.0.0.1", port, is_hosted=False), (Hello,), seconds=60)
        yield joined, other
        other.kill()
        leave(joined)


def test_tensors_cross_and_a_killed_end_is_named(peer: tuple[Joined, subprocess.Popen[bytes]]) -> None:
    joined, other = peer
    *plain, there, home = open_channels(remote_peer.WAYS, by_nccl=False)
    rows, words, back = map(DistributedCopy, plain)
    for count in (3, 1, 2):
        of_rows, of_words = torch.rand(count, 5), torch.arange(4, dtype=torch.int32)
        rows.send((of_rows, torch.empty(0, 5)))  # waits for nobody: the other end takes the words first
        words.send((of_words,))
        twice = torch.empty(count, 5), torch.empty(4, dtype=torch.int32)
        back.receive(twice)
        rows.before_overwriting()
        assert torch.equal(twice[0], 2 * of_rows)
        assert torch.equal(twice[1], 2 * of_words)
    large, found = torch.arange(100, dtype=torch.int32), torch.zeros(100, dtype=torch.int32)
    three, found_three = torch.rand(3), torch.zeros(3)
    going = StagedCopy(there, torch.empty(remote_peer.ROOM_BYTES, dtype=torch.uint8))
    going.send((large, three))
    StagedCopy(home, torch.empty(remote_peer.ROOM_BYTES, dtype=torch.uint8)).receive((found, found_three))
    assert torch.equal(found, large)
    assert torch.equal(found_three, three)
    assert joined.lines[0].receive() == Hello(1, "done")
    with pytest.raises(ValueError, match="without gaps"):
        rows.send((torch.zeros(2, 3).T,))

    other.kill()
    with pytest.raises(LineLost, match=r"has ended|connection is gone"):
        joined.lines[0].receive()
    began = time.monotonic()
    with pytest.raises(DeviceLostError, match=r"way 2 from rank 1 to rank 0: receiving failed .*gone or stuck"):
        back.receive((torch.empty(1),))
    with pytest.raises(DeviceLostError, match="way 0 from rank 0 to rank 1"):
        rows.send((torch.zeros(1),))
        rows.before_overwriting()

    def explain() -> None:
        raise DeviceLostError("it has said why")

    with pytest.raises(DeviceLostError, match="it has said why"):
        DistributedCopy(open_channels(remote_peer.WAYS, by_nccl=False)[2], explain).receive((torch.empty(1),))
    assert joined.lines[0].is_lost(5.0)
    assert time.monotonic() - began < 10


class SharedStore:
    """See `remote_line.Store`, among threads."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.texts: dict[str, str] = {}

    def add(self, key: str, amount: int, /) -> int:
        self.numbers[key] = self.numbers.get(key, 0) + amount
        return self.numbers[key]

    def set(self, key: str, value: str, /) -> None:
        self.texts[key] = value

    def get(self, key: str, /) -> bytes:
        while key not in self.texts:
            time.sleep(0.01)
        return self.texts[key].encode()


def test_strangers_are_not_let_in_and_a_new_life_is_found() -> None:
    store, found, turned_away = SharedStore(), list[tuple[int, Line]](), threading.Event()
    store.add("strata/life", 1)
    with socket.create_server(("127.0.0.1", 0)) as gone:  # of a leader that has ended
        store.set("strata/1", f'["127.0.0.1", {gone.getsockname()[1]}, "old"]')
    follower = threading.Thread(target=lambda: found.append(find_leader(store, 1, (Hello,), 20)))
    follower.start()

    def intrude() -> None:
        _, port, _ = json.loads(store.get("strata/2"))
        stranger = Line(socket.create_connection(("127.0.0.1", port)), (Hello,))
        stranger.send(Hello(1, "guessed"))
        with pytest.raises(LineLost):
            stranger.receive()
        turned_away.set()

    intruder = threading.Thread(target=intrude)
    intruder.start()
    life, lines = open_lines(store, "127.0.0.1", 2, (Hello,), 20)
    follower.join()
    intruder.join()
    assert life == 2
    assert len(lines) == 1
    assert turned_away.is_set()
    ((number, line),) = found
    lines[0].send(Hello(0, "word"))
    assert (number, line.receive()) == (2, Hello(0, "word"))


def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LineLost, match="rank 1, 2 of 3 did not come within 0 s"):
        open_lines(SharedStore(), "127.0.0.1", 3, (Hello,), 0.05)
    with pytest.raises(LineLost, match=r"cannot listen at 203.0.113.1 .*MASTER_ADDR must be an address of rank 0"):
        open_lines(SharedStore(), "203.0.113.1", 2, (Hello,), 0.05)  # an address that no host has
    monkeypatch.setattr(remote_line, "RETRY_SECONDS", 0.01)
    with pytest.raises(LineLost, match="rank 0 did not begin"):
        find_leader(SharedStore(), 1, (Hello,), 0.05)
    with pytest.raises(EngineError, match="did not come together: rank 1 of 2"):
        join(Ranks(0, 2, 0, "127.0.0.1", free_port(), is_hosted=False), (Hello,), seconds=0.2)


def test_ranks_are_those_of_torchrun() -> None:
    assert ranks_of(STARTED | {"TORCHELASTIC_USE_AGENT_STORE": "True"}) == Ranks(1, 2, 1, "here", 29500, True)
    for variables, problem in (
        ({}, "RANK is not set, so torchrun did not start this process"),
        (STARTED | {"MASTER_PORT": "ssh"}, "MASTER_PORT is 'ssh'"),
        (STARTED | {"RANK": "0", "WORLD_SIZE": "1"}, "process 0 of 1 .* --nproc-per-node 2"),
        (STARTED | {"RANK": "2"}, "process 2 of 2"),
    ):
        with pytest.raises(SettingsError, match=problem):
            ranks_of(variables)
