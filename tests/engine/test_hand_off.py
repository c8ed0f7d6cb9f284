"""Tensors cross from stage to stage whole and in order, however the devices' work falls."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest
import torch

from strata.engine import hand_off
from strata.engine.hand_off import HandOff, PeerCopy, PinnedCopy, PlainCopy, Road, Way, hand_off_between, pass_on
from tests.engine.queued_roads import QueuedRoads

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
ROWS, WIDTH, PIECE, CROSSINGS = 3, 7, 16, 6
Make = Callable[[QueuedRoads], HandOff]


def pinned(roads: QueuedRoads) -> HandOff:
    return PinnedCopy(roads, [torch.empty(PIECE, dtype=torch.uint8) for _ in range(2)])


def seen_by_target(make: Make, order: Random, *, waits: bool) -> list[list[float]]:
    """A source writes its rows and words again and again; what the target's launches find behind each crossing."""
    roads = QueuedRoads()
    crossing = make(roads)
    source = torch.zeros(ROWS, WIDTH), torch.zeros(2, dtype=torch.int32)
    target = torch.zeros(ROWS, WIDTH), torch.zeros(2, dtype=torch.int32)
    seen: list[list[float]] = []

    def look() -> None:
        seen.append(sorted({*target[0].flatten().tolist(), *target[1].tolist()}))

    for number in range(1, CROSSINGS + 1):
        if waits:
            crossing.before_overwriting()
        for tensor in source:
            for row in tensor:
                roads.launch(Road.SOURCE, partial(row.fill_, number))
        crossing.send(source)
        crossing.receive(target)
        roads.launch(Road.TARGET, look)
    roads.run(order)
    return seen


@pytest.mark.parametrize("make", [PeerCopy, pinned])
def test_target_finds_what_was_sent_in_every_order(make: Make) -> None:
    wanted = [[float(number)] for number in range(1, CROSSINGS + 1)]
    for seed in range(200):
        assert seen_by_target(make, Random(seed), waits=True) == wanted


@pytest.mark.parametrize("make", [PeerCopy, pinned])
def test_source_that_does_not_wait_is_found_out(make: Make) -> None:
    """The orders that are tried above can show a source that writes too early."""
    wanted = [[float(number)] for number in range(1, CROSSINGS + 1)]
    assert any(seen_by_target(make, Random(seed), waits=False) != wanted for seed in range(200))


def test_pieces_go_up_while_the_next_come_down() -> None:
    """Neither road of copies is empty while two pieces are under way; no third one comes down over one of them."""
    order: list[str] = []

    class Noting(QueuedRoads):
        def copy(self, road: Road, found: torch.Tensor, wanted: torch.Tensor) -> None:
            self.launch(road, partial(order.append, road.value))
            super().copy(road, found, wanted)

    roads = Noting()
    rows, room = torch.arange(64, dtype=torch.float32), torch.zeros(64)
    pass_on(pinned(roads), (rows,), (room,))

    class DownFirst(Random):
        def choice(self, ready: Sequence[Road]) -> Road:  # type: ignore[override]
            return min(ready, key=[Road.SOURCE, Road.TARGET, Road.DOWN, Road.UP].index)

    roads.run(DownFirst())
    assert torch.equal(room, rows)
    ahead = [order[:end].count("down") - order[:end].count("up") for end in range(1, len(order) + 1)]
    assert len(order) == 2 * 256 // PIECE
    assert max(ahead) == 2


def test_crossing_on_the_cpu_is_a_copy() -> None:
    crossing = hand_off_between(CPU, CPU)
    room = torch.zeros(2, 3)
    pass_on(crossing, (torch.ones(2, 3),), (room,))
    crossing.before_overwriting()
    assert isinstance(crossing, PlainCopy)
    assert room.sum() == 6


@pytest.mark.parametrize(
    ("reaches", "way", "kind"),
    [(True, None, PeerCopy), (False, None, PinnedCopy), (True, Way.PINNED, PinnedCopy), (False, Way.PEER, PeerCopy)],
)
def test_cards_that_reach_each_other_copy_without_main_memory(
    monkeypatch: pytest.MonkeyPatch, reaches: bool, way: Way | None, kind: type
) -> None:
    monkeypatch.setattr(hand_off, "CudaRoads", lambda *_: QueuedRoads())
    monkeypatch.setattr(hand_off, "_pinned_rooms", lambda size: [torch.empty(size, dtype=torch.uint8)] * 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: reaches)
    assert isinstance(hand_off_between(FIRST, SECOND, way), kind)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="pinned is between two cards, not from cpu to cpu"):
        hand_off_between(CPU, CPU, Way.PINNED)
    crossing = PlainCopy()
    with pytest.raises(RuntimeError, match="nothing was sent"):
        crossing.receive((torch.zeros(1),))
    crossing.send((torch.zeros(2, 3),))
    with pytest.raises(RuntimeError, match="is to be received"):
        crossing.before_overwriting()
    for wanted, problem in (
        (torch.zeros(3, 2), r"\[2, 3\] were sent, room for \[3, 2\]"),
        (torch.zeros(2, 3, dtype=torch.int32), "float32 were sent, room for int32"),
        (torch.zeros(3, 2).T, "has gaps"),
    ):
        with pytest.raises(ValueError, match=problem):
            crossing.receive((wanted,))
