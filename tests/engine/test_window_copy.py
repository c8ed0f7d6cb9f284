"""What crosses on the windows' own streams is found whole and in order, however the devices' work falls."""

from random import Random

import pytest
import torch

from strata.engine.hand_off import PlainCopy, Road
from strata.engine.window_copy import ThroughMemory, window_way
from tests.engine.queued_roads import QueuedRoads
from tests.engine.test_hand_off import CPU, CROSSINGS, seen_by_target

ROOM = 1024


def through_memory(roads: QueuedRoads) -> ThroughMemory:
    return ThroughMemory(roads, torch.zeros(ROOM, dtype=torch.uint8))


@pytest.mark.parametrize("waits", [True, False])
def test_target_finds_what_was_sent_in_every_order(waits: bool) -> None:
    """A source need not wait by itself: what it sends is copied on its own road."""
    wanted = [[float(number)] for number in range(1, CROSSINGS + 1)]
    for seed in range(200):
        assert seen_by_target(through_memory, Random(seed), waits=waits) == wanted


def test_a_source_that_does_not_wait_for_the_room_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The orders that are tried above can show a room that is written too early."""
    wanted = [[float(number)] for number in range(1, CROSSINGS + 1)]
    held = QueuedRoads.hold

    def hold(roads: QueuedRoads, road: Road, mark: int) -> None:
        if road is Road.TARGET:
            held(roads, road, mark)

    monkeypatch.setattr(QueuedRoads, "hold", hold)
    assert any(seen_by_target(through_memory, Random(seed), waits=True) != wanted for seed in range(200))


def test_what_does_not_fit_or_was_not_sent_is_refused() -> None:
    way = through_memory(QueuedRoads())
    with pytest.raises(ValueError, match="4100 bytes cross at once: there is room for 1024"):
        way.send([torch.zeros(1025)])
    with pytest.raises(RuntimeError, match="nothing was sent"):
        way.receive([torch.zeros(3)])
    way.send([torch.zeros(3)])
    with pytest.raises(ValueError, match=r"\[3\] were sent, room for \[4\]"):
        way.receive([torch.zeros(4)])
    with pytest.raises(RuntimeError, match="received before"):
        way.before_overwriting()


def test_on_one_device_tensors_are_copied_plainly() -> None:
    assert isinstance(window_way(CPU, CPU, ROOM), PlainCopy)
    assert isinstance(window_way(CPU, torch.device("cuda", 0), ROOM), PlainCopy)
