"""How far the host is ahead, on a pretended device whose legs end by its own clock."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import astuple
from math import inf

import pytest
import torch

from strata.engine.read_pace import (
    LONGEST_WAIT,
    SLEEP,
    ClockMark,
    LegPlace,
    LegTime,
    LegTimes,
    ReadPace,
    ReadSteps,
    time_through,
    time_to_spare,
)
from strata.experts.feed import Copying
from strata.settings import EngineSettings
from tests.engine.pretended_device import Device


def pace_on(device: Device, *, by_tiles: bool = False) -> ReadPace:
    return ReadPace(ReadSteps(0.05, by_tiles), device.mark, device.clock, device.sleep)


def has_room_soon(pace: ReadPace, place: LegPlace) -> bool:
    return pace.until(lambda: pace.has_room(place, Copying()))


def working(device: Device, work: float, waiting: float = 0.0) -> Callable[[Callable[[], None]], None]:
    """A leg that waits for experts and then works."""

    def launch(note_arrival: Callable[[], None]) -> None:
        if waiting:
            device.work(waiting)
            note_arrival()
        device.work(work)

    return launch


@pytest.mark.parametrize(
    ("legs", "end"),
    [
        ([], 5.0),
        ([LegTime(2), LegTime(1)], 8.0),
        ([LegTime(2), LegTime(0.5, 3), LegTime(0.5, 3)], 12.5),  # there at 9 and 12
        ([LegTime(5), LegTime(0.5, 3), LegTime(0.5, 3)], 12.5),
        ([LegTime(inf), LegTime(1)], inf),
    ],
)
def test_legs_end_one_after_another_and_behind_their_experts(legs: Sequence[LegTime], end: float) -> None:
    assert time_through(5.0, legs, arrival=9.0) == end


def test_legs_are_known_by_their_place_and_others_taken_for_the_longest_layer() -> None:
    times = LegTimes()
    assert times.from_leg(LegPlace(13, 0, 0)) == []

    def note(layer: int, *seconds: float) -> None:
        for number, each in enumerate(seconds):
            times.note(LegPlace(13, layer, number), LegTime(each))

    def known(rows: int, layer: int, number: int) -> list[float]:
        return [leg.work for leg in times.from_leg(LegPlace(rows, layer, number))]

    note(0, 0.001, 0.002, 0.003)
    note(1, 0.004, 0.005)
    assert known(13, 0, 1) == [0.002, 0.003]
    assert known(13, 7, 1) == [0.005]
    assert known(12, 0, 0) == []  # chunks of half as many rows
    note(0, 0.006, 0.007)
    note(1, 0.004)
    assert known(13, 0, 0) == [0.006, 0.007]  # a tile less than before
    times.break_off()
    note(0, 0.006)
    assert known(13, 1, 0) == [0.004, 0.005]  # given up: nobody knows how many there would have been


def test_an_unknown_device_gets_one_leg_after_another() -> None:
    device = Device()
    pace = pace_on(device)
    assert has_room_soon(pace, LegPlace(13, 0, 0))
    pace.launch(LegPlace(13, 0, 0), 0.0, 0.0, working(device, 0.02))
    assert pace.queued == inf
    while not has_room_soon(pace, LegPlace(13, 1, 0)):
        assert device.now < 0.02
    assert device.now == pytest.approx(0.02, abs=SLEEP) and pace.queued == 0.0
    assert [leg.work for leg in pace.times.from_leg(LegPlace(13, 5, 0))] == pytest.approx([0.02])


def test_what_is_queued_is_known_by_the_device_s_own_time_and_by_when_experts_come() -> None:
    device = Device()
    pace = pace_on(device)
    places = [LegPlace(13, 0, number) for number in range(3)]
    for place in places:
        pace.launch(place, 0.003, 0.0, working(device, 0.004, waiting=0.001))
    device.now = 1.0
    assert pace.queued == 0.0
    assert [leg.work for leg in pace.times.from_leg(places[0])] == pytest.approx([0.004] * 3)
    assert [leg.sending for leg in pace.times.from_leg(places[0])] == [0.003] * 3
    for place in places:
        pace.launch(place, 0.003, 0.002, working(device, 0.004, waiting=0.002))
    assert pace.queued == pytest.approx(0.002 + 3 * 0.004)
    device.now = 1.007  # the first has ended, and is seen only now
    assert pace.queued == pytest.approx(0.008)
    device.now = 1.008
    assert pace.queued == pytest.approx(0.007)
    device.now = 1.020  # by its times it has ended: it ends now
    device.busy_until = 2.0
    assert pace.queued == 0.0


DENSE, TILE = LegTime(5), LegTime(1, 3)


@pytest.mark.parametrize(
    ("legs", "arrivals", "spare"),
    [
        ([DENSE], (), 0),
        ([DENSE, TILE], (9,), 9 - 5),
        ([TILE, TILE, TILE, TILE], (3, 6, 9), 9 - 1),  # a fourth is sent when the first was used, and comes at 12
        ([TILE, TILE, TILE, TILE], (0, 0, 0), 0),  # the device is behind: a fourth comes later if it is later
        ([DENSE, TILE, TILE], (3, 6), 0),  # they are there before they are needed
        ([TILE, TILE], (), 0),  # what is sent depends on what is computed first
    ],
)
def test_time_to_spare_is_what_ends_nothing_later(
    legs: Sequence[LegTime], arrivals: Sequence[float], spare: float
) -> None:
    assert time_to_spare(0.0, legs, arrivals) == spare


def test_what_is_ahead_of_a_chunk() -> None:
    device = Device()
    pace = pace_on(device, by_tiles=True)
    for number, (work, sending) in enumerate(((0.005, 0.0), (0.001, 0.003), (0.001, 0.003))):
        pace.launch(LegPlace(13, 0, number), sending, 0.0, working(device, work, waiting=sending))
    device.now = 1.0
    assert pace.queued == 0.0
    dense, tile, copying = LegPlace(13, 0, 0), LegPlace(13, 0, 1), Copying((0.002, 0.005, 0.008))

    def ahead(place: LegPlace, *, has_next: bool) -> tuple[float | None, ...]:
        return astuple(pace.ahead(place, copying, has_next=has_next))

    assert ahead(dense, has_next=False) == pytest.approx((0.0, 0.005, 0.0))
    assert ahead(tile, has_next=False) == pytest.approx((0.0, 0.003, 0.004))
    assert ahead(tile, has_next=True) == pytest.approx((0.0, 0.003, 0.004))
    assert ahead(LegPlace(9, 0, 0), has_next=True) == (0.0, None, 0.0)
    pace.times.note(LegPlace(9, 1, 0), LegTime(0.002, launching=0.004))
    assert ahead(LegPlace(9, 1, 0), has_next=False) == (0.0, 0.004, 0.0)
    pace.launch(dense, 0.0, 0.0, working(device, 0.005))
    assert ahead(tile, has_next=False) == pytest.approx((0.005, 0.001, 0.0))


def test_behind_a_chunk_the_next_one_is_taken_to_begin_as_it_did() -> None:
    device = Device()
    pace = pace_on(device)
    assert astuple(pace.between_chunks()) == (0.0, None, 0.0)
    for number, (work, sending) in enumerate(((0.005, 0.0), (0.001, 0.003), (0.001, 0.003))):
        pace.launch(LegPlace(13, 0, number), sending, 0.0, working(device, work, waiting=sending))
    device.now = 1.0
    assert astuple(pace.between_chunks()) == pytest.approx((0.0, 0.007, 0.0))
    pace.launch(LegPlace(13, 1, 0), 0.0, 0.0, working(device, 0.005))
    assert astuple(pace.between_chunks()) == pytest.approx((0.005, 0.007, 0.0))


def run_layers(pace: ReadPace, device: Device, layers: int, seconds: float, launching: float = 0.0) -> list[float]:
    """Times between two yields of a read of layers of two legs; the host takes its time for launching each layer.

    It also yields where it waits for room.
    """

    def launch(_: Callable[[], None]) -> None:
        device.work(seconds / 2)
        device.now += launching / 2

    yields = [device.now]
    for layer in range(layers):
        while not has_room_soon(pace, LegPlace(13, layer, 0)):
            yields.append(device.now)
        for number in range(2):
            pace.launch(LegPlace(13, layer, number), 0.0, 0.0, launch)
        yields.append(device.now)
    return [after - before for before, after in itertools.pairwise(yields)]


@pytest.mark.parametrize("launching", [0.0, 0.5])  # of a layer's time
@pytest.mark.parametrize(("layer", "most_queued"), [(0.004, 0.05), (0.026, 0.05), (0.057, 0.057)])
def test_a_read_yields_once_a_layer_and_queues_no_more_than_it_may(
    layer: float, most_queued: float, launching: float
) -> None:
    device = Device()
    pace = pace_on(device)
    gaps = run_layers(pace, device, 40, layer, launching * layer)
    assert max(gaps) <= LONGEST_WAIT + SLEEP + launching * layer + 1e-9
    assert device.busy_until - device.now <= most_queued + 1e-9
    if layer < 0.025:  # the device never waits for the host, but for the first two layers, of which nothing is known
        assert device.busy_until <= (40 + 2 * launching) * layer + 2 * SLEEP


def test_waiting_for_a_step_waits_for_the_oldest_layer_or_the_oldest_leg() -> None:
    for by_tiles, waits in ((False, [0.02, 0.04]), (True, [0.01, 0.02, 0.03, 0.04])):
        device = Device()
        pace = pace_on(device, by_tiles=by_tiles)
        for layer in range(2):
            for number in range(2):
                pace.launch(LegPlace(13, layer, number), 0.0, 0.0, working(device, 0.01))
        ends = []
        while pace.wait_for_step():
            ends.append(device.now)
        assert ends == pytest.approx(waits)


def test_on_the_cpu_a_leg_has_ended_when_its_launch_returns() -> None:
    pace = ReadPace.on(torch.device("cpu"), ReadSteps.of(EngineSettings(max_gap_ms=60, read_step="tile")))
    assert pace.steps == ReadSteps(0.03, by_tiles=True)
    first = ClockMark()
    pace.launch(LegPlace(1, 0, 0), 0.0, 0.0, lambda _: None)
    assert pace.queued == 0.0
    (leg,) = pace.times.from_leg(LegPlace(1, 0, 0))
    assert 0 <= leg.work <= ClockMark().seconds_since(first)
