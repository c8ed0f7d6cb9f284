"""A read on a pretended device beside replies: experts come by a road of their own, windows stand in the queue.

What is simulated is a card: launches are queued and the host goes on, three tiles are on their way at most. What
decides is the scheduler's own rule over what the engine tells of its legs.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from strata.engine.read_pace import LegPlace, ReadPace, ReadSteps
from strata.engine.steps import Read, Window
from strata.experts.feed import Copying
from strata.scheduler.due import Limits, Pace, Reading, Stream, View, next_step
from strata.types import ReadAhead
from tests.engine.pretended_device import Device

RING = 3
ROWS = 14


@dataclass(frozen=True)
class Layer:
    """Seconds of a layer's parts."""

    dense: float
    tiles: int = 0
    copy: float = 0.0  # of a tile
    work: float = 0.0  # with a tile


@dataclass
class Card:
    """A read of many layers, leg by leg, on a device with a road of copies."""

    layers: int
    layer: Layer
    pace: ReadPace
    device: Device
    at: tuple[int, int] = (0, 0)  # the next leg: layer and number
    arrivals: deque[float] = field(default_factory=deque)  # of tiles that are asked for and not waited for
    last_arrival: float = 0.0
    unasked: int = 0  # tiles

    def __post_init__(self) -> None:
        self.unasked = self.layers * self.layer.tiles
        self.last_arrival = self.device.now
        for _ in range(RING):
            self._ask(self.device.now)

    @property
    def is_through(self) -> bool:
        return self.at[0] == self.layers

    @property
    def place(self) -> LegPlace:
        return LegPlace(ROWS, *self.at)

    @property
    def copying(self) -> Copying:
        return Copying(tuple(max(0.0, arrival - self.device.now) for arrival in self.arrivals))

    @property
    def ahead(self) -> ReadAhead:
        return self.pace.ahead(self.place, self.copying, has_next=self.at[0] + 1 < self.layers)

    def step(self) -> None:
        layer = self.at[0]
        if not self.pace.until(lambda: self.pace.has_room(self.place, self.copying)):
            return
        while not self.is_through and self.at[0] == layer:
            self._launch()
            if self.pace.steps.by_tiles:
                return

    def _launch(self) -> None:
        layer, number = self.at
        sending = self.layer.copy if number else 0.0
        arrival = self.copying.arrivals[0] if number else 0.0
        self.pace.launch(self.place, sending, arrival, self._work)
        if number:
            self._ask(self.device.busy_until)
        self.at = (layer, number + 1) if number < self.layer.tiles else (layer + 1, 0)

    def _work(self, note_arrival: Callable[[], None]) -> None:
        if self.at[1] == 0:
            self.device.work(self.layer.dense)
            return
        waiting = self.arrivals.popleft() - max(self.device.busy_until, self.device.now)
        self.device.work(max(0.0, waiting))
        note_arrival()
        self.device.work(self.layer.work)

    def _ask(self, part_is_free: float) -> None:
        if self.unasked:
            self.unasked -= 1
            self.last_arrival = max(self.last_arrival, part_is_free) + self.layer.copy
            self.arrivals.append(self.last_arrival)


@dataclass
class Found:
    gaps: list[float]
    windows: int
    seconds: float  # of the read


def read_beside_a_reply(
    layer: Layer, window: float, *, by_tiles: bool, layers: int = 48, max_gap: float = 0.1, uneven: float = 0.0
) -> Found:
    """The legs are known from a chunk before; window 0: there is no reply; uneven: every third takes so much longer."""
    device = Device()
    pace = ReadPace(ReadSteps(max_gap / 2, by_tiles), device.mark, device.clock, device.sleep)
    first = Card(layers, layer, pace, device)
    while not first.is_through:
        first.step()
    device.now = device.busy_until
    assert pace.queued == 0.0
    card = Card(layers, layer, pace, device)
    limits, learned, began, last = Limits(2, max_gap=max_gap), Pace(window_seconds=window), device.now, device.now
    piece, gaps = Read(0, 8192), list[float]()
    while not card.is_through:
        ahead, before = card.ahead, device.now
        streams = [Stream(1, last)] if window else []
        step = next_step(View(device.now, Reading(0, 0, 8192, piece), streams, learned, ahead), limits)
        if isinstance(step, Window):
            device.work(window + uneven * (len(gaps) % 3 == 2))
            device.now = device.busy_until
            learned.note_window(device.now - before, ahead.queued)
            gaps.append(device.now - last)
            last = device.now
        else:
            card.step()
            learned.note_read(device.now - before, 0.0)
    return Found(gaps, len(gaps), device.busy_until - began)


H200, PCIE_4 = Layer(0.0055, 8, 0.0033, 0.0003), Layer(0.0055, 8, 0.0071, 0.0003)
RESIDENT, LONG = Layer(0.0080), Layer(0.0140, 1, 0.0033, 0.0003)


@pytest.mark.parametrize("by_tiles", [False, True])
@pytest.mark.parametrize("layer", [H200, PCIE_4, RESIDENT, LONG, Layer(0.026), Layer(0.057)])
def test_no_gap_is_longer_than_the_one_asked_for(layer: Layer, by_tiles: bool) -> None:
    found = read_beside_a_reply(layer, 0.008, by_tiles=by_tiles)
    assert max(found.gaps) <= 0.1 + 1e-6
    assert found.windows > 3


def test_windows_that_are_long_now_and_then_are_reckoned_with() -> None:
    found = read_beside_a_reply(Layer(0.030), 0.006, by_tiles=False, layers=100, uneven=0.015)
    assert max(found.gaps[:3]) > 0.1, "nobody knew"
    assert max(found.gaps[3:]) <= 0.1 + 1e-6


@pytest.mark.parametrize(("step", "window"), [(0.120, 0.008), (0.057, 0.060)])
def test_where_a_step_and_a_window_alone_are_longer_the_gap_is_just_that(step: float, window: float) -> None:
    found = read_beside_a_reply(Layer(step), window, by_tiles=False, layers=20)
    assert max(found.gaps) == pytest.approx(step + window)
    assert found.windows == 20


@pytest.mark.parametrize("layer", [H200, PCIE_4])
def test_a_read_that_waits_for_experts_leaves_its_waiting_to_windows(layer: Layer) -> None:
    """Of a layer's 26 ms 8 are computing: tile steps find room for windows again and again, and it loses nothing."""
    alone = read_beside_a_reply(layer, 0.0, by_tiles=True)
    beside = read_beside_a_reply(layer, 0.008, by_tiles=True)
    whole = 48 * 8 * layer.copy
    assert alone.seconds == pytest.approx(whole, rel=0.02)
    assert beside.seconds <= 1.01 * alone.seconds
    assert beside.windows * 0.008 > 0.4 * alone.seconds
    by_layers = read_beside_a_reply(layer, 0.008, by_tiles=False)
    assert by_layers.seconds <= 1.06 * alone.seconds


def test_a_read_that_computes_gives_windows_only_what_the_gap_asks_for() -> None:
    """One tile a layer arrives long before it is needed: copies are on their way, and no time is to spare."""
    found = read_beside_a_reply(LONG, 0.008, by_tiles=True)
    alone = read_beside_a_reply(LONG, 0.0, by_tiles=True)
    assert found.seconds - alone.seconds <= 0.008 * found.windows + 1e-6
    assert found.windows <= alone.seconds / 0.07
