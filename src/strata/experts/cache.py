"""Which experts have seats in a card's memory: counts that fade, and which resident gives way to which miss.

Knows numbers only, of the layers of one device; knows no tensor, no copy and no clock. Whoever drives it says which
experts windows asked for and when copies have landed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.errors import SettingsError


class ExpertId(NamedTuple):
    """One routed expert of one of the device's layers that have experts."""

    layer: int
    expert: int


@dataclass(frozen=True)
class Swap:
    """A seat changes hands: `victim` loses it at once, `arrival` has it when its bytes have landed."""

    arrival: ExpertId
    victim: ExpertId


@dataclass(frozen=True)
class SwapRule:
    """When residents are replaced. Raises SettingsError for values that make no rule.

    The defaults were chosen by replay (docs/log.md, 2026-11-30).
    """

    every: int = 2  # windows between two rounds
    most_swaps: int = 64  # of a round
    margin: float = 1.5  # by how much a miss must lead
    decay: float = 0.96  # what is left of every count after a round: half of it after 34 windows
    again: float = 0.3  # what a window counts that asks for an expert as the last one did; others count 1

    def __post_init__(self) -> None:
        limits = {
            "every": (1, 1 << 20),
            "most_swaps": (0, 1 << 20),
            "margin": (0, 1e6),
            "decay": (0, 1),
            "again": (0, 1),
        }
        for field in fields(self):
            value, (low, high) = getattr(self, field.name), limits[field.name]
            if not low <= value <= high:
                raise SettingsError(f"swap rule: {field.name} is {value}; {low:g} to {high:g} works")


@dataclass(frozen=True)
class CacheView:
    """All that a decision sees. Arrays are [layers, experts]; nobody writes to them while it is made."""

    counts: NDArray[np.float32]  # windows that asked for an expert, older and repeated ones counting less
    is_resident: NDArray[np.bool_]
    is_landing: NDArray[np.bool_]  # on their way to a seat, or out of reach: may neither come nor go
    blob_bytes: NDArray[np.int64]  # [layers]: of one expert


def place_hottest(heat: NDArray[np.generic], blob_bytes: Sequence[int], room_bytes: int) -> NDArray[np.bool_]:
    """Who has a seat at the start: the hottest experts of all layers together that fit into `room_bytes`.

    `heat` [layers, experts] is how often a profile saw them. Among equals every layer gets one expert before any gets
    a second one, so that without a profile the seats are spread. Where blobs differ in size, a smaller one may still
    fit after a larger one did not.
    """
    layers, experts = heat.shape
    layer_of = np.repeat(np.arange(layers), experts)
    expert_of = np.tile(np.arange(experts), layers)
    order = np.lexsort((layer_of, expert_of, -heat.astype(np.float64).ravel()))
    sizes = np.asarray(blob_bytes, np.int64)[layer_of[order]]
    is_placed = np.zeros(layers * experts, bool)
    free = room_bytes
    while len(order):
        fitting = int(np.searchsorted(np.cumsum(sizes), free, side="right"))
        is_placed[order[:fitting]] = True
        free -= int(sizes[:fitting].sum())
        is_small = sizes[fitting:] <= free  # the first that did not fit is not among them
        order, sizes = order[fitting:][is_small], sizes[fitting:][is_small]
    return is_placed.reshape(layers, experts)


class ExpertCache:
    """Counts and residents of one device, and the swaps that a rule makes of them. Not thread-safe.

    Every seat that was placed at the start stays a seat. An arrival is on its way until `land` is called. Experts that
    a window in flight uses may give way: whoever moves bytes does so behind that window.
    """

    def __init__(self, is_placed: NDArray[np.bool_], blob_bytes: Sequence[int], rule: SwapRule) -> None:
        """`is_placed` [layers, experts]: who has a seat, as `place_hottest` says; `blob_bytes` [layers]."""
        self.is_resident = is_placed.copy()  # for reading only
        self._rule = rule
        self._blob_bytes = np.asarray(blob_bytes, np.int64)
        self._counts = np.zeros(is_placed.shape, np.float32)
        self._asked = np.zeros(is_placed.shape, np.int32)  # windows since the last round
        self._was_asked = np.zeros(is_placed.shape, bool)  # in the round before
        self._is_landing = np.zeros(is_placed.shape, bool)
        self._windows = 0

    @property
    def view(self) -> CacheView:
        """What the next decision would see."""
        return CacheView(self._counts, self.is_resident, self._is_landing, self._blob_bytes)

    def note_window(self, layers: NDArray[np.integer], experts: NDArray[np.integer]) -> list[Swap]:
        """Count the distinct experts that a window asked for; if a round is due, the swaps that begin now.

        Their victims are no residents any more when this returns.
        """
        self._asked[layers, experts] += 1
        self._windows += 1
        return [] if self._windows % self._rule.every else self._round(self._rule.most_swaps)

    def note_counts(
        self, counts: NDArray[np.integer], most_swaps: int, may_move: NDArray[np.bool_] | None = None
    ) -> list[Swap]:
        """A round at once: `counts` [layers, experts] windows asked for an expert since the last one.

        The swaps that begin now, `most_swaps` at most; see `note_window`. may_move [layers, experts]: who may come or
        go; None: everyone.
        """
        self._asked += counts
        return self._round(min(most_swaps, self._rule.most_swaps), may_move)

    def call_off(self, swap: Swap) -> None:
        """A swap that had begun does not take place, its victim keeps the seat. Raises ValueError as `land` does."""
        self._arrived(swap.arrival)
        self.is_resident[swap.victim] = True

    def land(self, arrival: ExpertId) -> None:
        """Its bytes are in the seat. Raises ValueError for an expert that is not on its way."""
        self._arrived(arrival)
        self.is_resident[arrival] = True

    def _round(self, most_swaps: int, may_move: NDArray[np.bool_] | None = None) -> list[Swap]:
        is_asked = self._asked > 0
        repeated = self._asked - (is_asked & ~self._was_asked)
        self._counts += self._asked - np.float32(1 - self._rule.again) * repeated
        self._was_asked = is_asked
        self._asked[:] = 0
        view = self.view if may_move is None else replace(self.view, is_landing=self._is_landing | ~may_move)
        swaps = choose_swaps(view, replace(self._rule, most_swaps=most_swaps))
        self._counts *= np.float32(self._rule.decay)
        for swap in swaps:
            self.is_resident[swap.victim] = False
            self._is_landing[swap.arrival] = True
        return swaps

    def _arrived(self, arrival: ExpertId) -> None:
        if not self._is_landing[arrival]:
            raise ValueError(f"expert {arrival.expert} of layer {arrival.layer} is not on its way to a seat")
        self._is_landing[arrival] = False


def choose_swaps(view: CacheView, rule: SwapRule) -> list[Swap]:
    """The swaps of a round, most gained first: the misses asked for most often against the residents asked for least.

    A pair is a swap if count(miss) > count(resident) + margin. A seat is as large as the blob that it was made for, so
    an expert comes in place of one whose blob has the same size.
    """
    found: list[tuple[float, Swap]] = []
    for size in np.unique(view.blob_bytes):
        may_move = (view.blob_bytes == size)[:, None] & ~view.is_landing
        found += _pairs(view.counts, may_move & ~view.is_resident, may_move & view.is_resident, rule)
    found.sort(key=lambda pair: -pair[0])
    return [swap for _, swap in found[: rule.most_swaps]]


def _pairs(
    counts: NDArray[np.float32], is_waiting: NDArray[np.bool_], is_leaving: NDArray[np.bool_], rule: SwapRule
) -> list[tuple[float, Swap]]:
    """(gain, swap) of blobs of one size, most gained first; the lower layer and expert first among equals."""
    flat = counts.ravel()
    waiting, leaving = np.flatnonzero(is_waiting), np.flatnonzero(is_leaving)
    if not len(waiting) or not len(leaving):
        return []
    # Most experts are out of the question at once; only what is left is sorted.
    waiting = waiting[flat[waiting] > flat[leaving].min() + rule.margin]
    if not len(waiting):
        return []
    leaving = leaving[flat[leaving] + rule.margin < flat[waiting].max()]
    arrivals = waiting[np.argsort(-flat[waiting], kind="stable")[: rule.most_swaps]]
    victims = leaving[np.argsort(flat[leaving], kind="stable")[: rule.most_swaps]]
    pairs = min(len(arrivals), len(victims))
    arrivals, victims = arrivals[:pairs], victims[:pairs]
    leads = flat[arrivals] > flat[victims] + rule.margin
    arrivals, victims = arrivals[leads], victims[leads]
    experts = counts.shape[1]
    return [
        (gain, Swap(ExpertId(*divmod(arrival, experts)), ExpertId(*divmod(victim, experts))))
        for gain, arrival, victim in zip(
            (flat[arrivals] - flat[victims]).tolist(), arrivals.tolist(), victims.tolist(), strict=True
        )
    ]
