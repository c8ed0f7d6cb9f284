"""What a recorded trace's windows would have found in a card's memory under several ways to fill its seats.

Knows which experts windows asked for and who has a seat when; knows no file and no copy. A window is one moment: it
hits what was resident before it, and whatever is taken in counts from a later window on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.experts.cache import ExpertCache, ExpertId, SwapRule, place_hottest

Heat = NDArray[np.generic]  # [layers, experts]: how often a profile saw an expert


@dataclass(frozen=True)
class Requests:
    """What windows asked for: of each window the distinct experts, as numbers layer * experts + expert, rising."""

    keys: NDArray[np.int64]  # [requests], window by window
    bounds: NDArray[np.int64]  # [windows + 1]: a window's part of `keys`
    layers: int
    experts: int

    @property
    def windows(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """The keys of one window after another."""
        for start, stop in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            yield self.keys[start:stop]

    def counts(self) -> NDArray[np.int64]:
        """Windows that asked for each expert [layers, experts]."""
        flat = np.bincount(self.keys, minlength=self.layers * self.experts)
        return flat.reshape(self.layers, self.experts)

    def between(self, first: int, last: int) -> "Requests":
        """The windows from `first` to in front of `last`."""
        bounds = self.bounds[first : last + 1]
        return Requests(self.keys[bounds[0] : bounds[-1]], bounds - bounds[0], self.layers, self.experts)

    def only(self, is_wanted: NDArray[np.bool_]) -> "Requests":
        """The same windows with the experts of some layers only; `is_wanted` [layers]."""
        is_kept = is_wanted[self.keys // self.experts]
        before = np.concatenate(([0], np.cumsum(is_kept)))
        return Requests(self.keys[is_kept], before[self.bounds], self.layers, self.experts)


def requests_of(ids: NDArray[np.integer], windows: NDArray[np.integer], experts: int) -> Requests:
    """The requests of some rows: `ids` [rows, layers, ranks], `windows` [rows] their windows, rising from any number.

    Rows with the same number are one window; an expert that several of them chose is one request.
    """
    layers = ids.shape[1]
    numbers, window_of = np.unique(windows, return_inverse=True)
    keys = ids.astype(np.int64) + (np.arange(layers) * experts)[None, :, None]
    width = layers * experts
    distinct = np.unique(keys + (window_of * width)[:, None, None])
    bounds = np.searchsorted(distinct, np.arange(len(numbers) + 1) * width)
    return Requests(distinct % width, bounds, layers, experts)


@dataclass(frozen=True)
class Outcome:
    """What a way to fill the seats gave."""

    requests: int
    hits: int
    copies: int  # experts that were copied into a seat while windows ran
    copied_bytes: int

    @property
    def hit_rate(self) -> float:
        """Hits a request; 0 of no requests."""
        return self.hits / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class Seats:
    """The memory that experts have, and who is in it at first: a profile's hottest, all layers together."""

    heat: Heat
    blob_bytes: Sequence[int]  # of an expert of each layer
    room_bytes: int


@dataclass(frozen=True)
class Comparison:
    """One size of memory under every policy, all over the same windows."""

    percent: float  # of all experts' bytes
    seats: int
    belady: Outcome
    lru: Outcome
    best_set: Outcome  # the best that never changes, chosen with hindsight
    learned_set: Outcome  # the profile's hottest, never changing
    adaptive: Outcome  # the cache as it is


def compare_policies(
    requests: Requests, heat: Heat, blob_bytes: Sequence[int], percent: float, rule: SwapRule, landing_windows: int
) -> Comparison:
    """Replay the same windows under every policy with room for `percent` of all experts, starting from a profile.

    LRU and the cache wait alike for their copies; Belady, the limit, does not.
    """
    room_bytes = int(sum(blob_bytes) * requests.experts * percent / 100)
    seats = Seats(heat, blob_bytes, room_bytes)
    return Comparison(
        percent=percent,
        seats=int(np.count_nonzero(place_hottest(heat, blob_bytes, room_bytes))),
        belady=replay_belady(requests, seats),
        lru=replay_lru(requests, seats, landing_windows),
        best_set=replay_best_set(requests, seats),
        learned_set=replay_static(requests, seats),
        adaptive=replay_adaptive(requests, seats, rule, landing_windows),
    )


# Hits and copies of requests for blobs of one size: (requests, heat of these experts, seats).
_OneSize = Callable[[Requests, Heat, int], tuple[int, int]]


def replay_static(requests: Requests, seats: Seats) -> Outcome:
    """Nobody ever gives way: the profile's hottest stay."""
    return _by_size(_static, requests, seats)


def replay_best_set(requests: Requests, seats: Seats) -> Outcome:
    """The best that seats of these sizes can do if nobody ever gives way, chosen with hindsight."""
    return _by_size(lambda of_size, _, count: _static(of_size, of_size.counts(), count), requests, seats)


def replay_lru(requests: Requests, seats: Seats, landing_windows: int = 0) -> Outcome:
    """Every miss takes the seat of the one that was asked for longest ago; see `replay_adaptive` for the delay."""
    return _by_size(lambda of_size, heat, count: _lru(of_size, heat, count, landing_windows), requests, seats)


def replay_belady(requests: Requests, seats: Seats) -> Outcome:
    """The most hits that are possible if an expert takes a seat only when it was asked for. Copies take no time.

    After each window those stay whose next window is nearest, a miss among them only if it is sooner than another's;
    at first the seats belong to those that are wanted first.
    """
    return _by_size(_belady, requests, seats)


def replay_adaptive(requests: Requests, seats: Seats, rule: SwapRule, landing_windows: int = 1) -> Outcome:
    """The cache itself. An expert that was copied in is hit once `landing_windows` more windows have run."""
    cache = ExpertCache(place_hottest(seats.heat, seats.blob_bytes, seats.room_bytes), seats.blob_bytes, rule)
    hits = copies = copied_bytes = 0
    landing: list[list[ExpertId]] = [[] for _ in range(landing_windows)]
    for keys in requests:
        layers, experts = np.divmod(keys, requests.experts)
        hits += int(np.count_nonzero(cache.is_resident[layers, experts]))
        swaps = cache.note_window(layers, experts)
        landing.append([swap.arrival for swap in swaps])
        for arrival in landing.pop(0):
            cache.land(arrival)
        copies += len(swaps)
        copied_bytes += sum(seats.blob_bytes[swap.arrival.layer] for swap in swaps)
    return Outcome(len(requests.keys), hits, copies, copied_bytes)


def _by_size(policy: _OneSize, requests: Requests, seats: Seats) -> Outcome:
    """A seat holds blobs of one size: each size is a cache of its own, as large as the first placement made it."""
    is_placed = place_hottest(seats.heat, seats.blob_bytes, seats.room_bytes)
    hits = copies = copied_bytes = 0
    for size in sorted(set(seats.blob_bytes)):
        is_of_size = np.array([each == size for each in seats.blob_bytes])
        heat = np.where(is_of_size[:, None], seats.heat.astype(np.float64), -1.0)
        found = policy(requests.only(is_of_size), heat, int(is_placed[is_of_size].sum()))
        hits, copies, copied_bytes = hits + found[0], copies + found[1], copied_bytes + found[1] * size
    return Outcome(len(requests.keys), hits, copies, copied_bytes)


def _static(requests: Requests, heat: Heat, seats: int) -> tuple[int, int]:
    is_resident = place_hottest(heat, [1] * requests.layers, seats).ravel()
    return int(np.count_nonzero(is_resident[requests.keys])), 0


def _lru(requests: Requests, heat: Heat, seats: int, landing_windows: int) -> tuple[int, int]:
    """Seats belong to the `seats` experts with the latest stamps; before the first window to the hottest."""
    if seats == 0:
        return 0, 0
    stamps = -1 - _ranks(heat)
    first_window = np.zeros(len(stamps), np.int64)  # that hits an expert which has a seat
    hits = copies = 0
    least = _least_of_largest(stamps, seats)  # stamp of one that has a seat
    for index, keys in enumerate(requests):
        had_seat = stamps[keys] >= least
        hits += int(np.count_nonzero(had_seat & (first_window[keys] <= index)))
        stamps[keys] = index * len(stamps) + keys
        least = _least_of_largest(stamps, seats)
        copied = keys[~had_seat & (stamps[keys] >= least)]
        first_window[copied] = index + 1 + landing_windows
        copies += len(copied)
    return hits, copies


def _belady(requests: Requests, heat: Heat, seats: int) -> tuple[int, int]:
    """`heat` changes nothing: whoever knows the future needs no profile."""
    never = requests.windows
    next_window = np.full(requests.layers * requests.experts, never)
    upcoming = _next_windows(requests, never)
    firsts, places = np.unique(requests.keys, return_index=True)
    next_window[firsts] = _window_of(requests)[places]
    is_resident = np.zeros(len(next_window), bool)
    is_resident[np.argsort(next_window, kind="stable")[:seats]] = True
    hits = copies = 0
    for start, stop in zip(requests.bounds[:-1].tolist(), requests.bounds[1:].tolist(), strict=True):
        keys = requests.keys[start:stop]
        was_hit = is_resident[keys]
        hits += int(np.count_nonzero(was_hit))
        next_window[keys] = upcoming[start:stop]
        missed = keys[~was_hit]
        residents = np.flatnonzero(is_resident)
        candidates = np.concatenate((residents, missed))
        if len(candidates) > seats > 0:
            wanted = next_window[candidates] * 2  # among equals a resident stays: that copy is saved
            wanted[len(residents) :] += 1
            stays = np.argpartition(wanted, seats - 1)[:seats]
            is_resident[residents] = False
            is_resident[candidates[stays]] = True
            copies += int(np.count_nonzero(stays >= len(residents)))
    return hits, copies


def _ranks(heat: Heat) -> NDArray[np.int64]:
    """Place of every expert [layers * experts] in the order of `place_hottest`, 0 for the hottest."""
    layers, experts = heat.shape
    numbers = np.arange(layers * experts)
    order = np.lexsort((numbers // experts, numbers % experts, -heat.astype(np.float64).ravel()))
    ranks = np.empty(layers * experts, np.int64)
    ranks[order] = numbers
    return ranks


def _least_of_largest(values: NDArray[np.int64], count: int) -> int:
    """The smallest of the `count` largest values, which are distinct."""
    return int(np.partition(values, len(values) - count)[len(values) - count])


def _window_of(requests: Requests) -> NDArray[np.int64]:
    return np.repeat(np.arange(requests.windows), np.diff(requests.bounds))


def _next_windows(requests: Requests, never: int) -> NDArray[np.int64]:
    """For each request the next window that asks for the same expert; `never` if none does."""
    order = np.argsort(requests.keys, kind="stable")
    keys, windows = requests.keys[order], _window_of(requests)[order]
    following = np.full(len(keys), never)
    if len(keys):
        following[:-1] = np.where(keys[1:] == keys[:-1], windows[1:], never)
    found = np.empty(len(keys), np.int64)
    found[order] = following
    return found
