"""The share that the GPU reads in place, refined by what both sides did: after 48, 96 and 192 windows.

Knows counters and the table; what rates make of them is decided in `share` and `share_refining`. Nothing here waits for
the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from strata.experts.share import FixedCosts, Rates, share_table
from strata.experts.share_refining import REFINED_AT, TRIED_WINDOWS, Seen, refined, refinement_in_words, tried_table
from strata.experts.streams import Mark, Streams
from strata.experts.tiers import TierCounts


class CountedTiers(Protocol):
    """What the share is refined with; `experts.tiers.ExpertTiers` is one."""

    gpu_times: torch.Tensor  # int64 [groups, 2] on the device: `PlanState.times` of every group's windows
    waits_in_stream: bool

    def counts(self) -> TierCounts:
        """So far; of a GPU those of a moment ago."""
        ...

    def set_share(self, table: torch.Tensor) -> None:
        """int32 [most misses + 1] in main memory."""
        ...


@dataclass(frozen=True)
class Sizes:
    """Of an expert, all layers averaged, and of the table."""

    blob_bytes: int
    most_misses: int
    card_s: float = 0.0  # see `share_table`


class ShareTuner:
    """Not thread-safe: called by whoever launches, before each launch.

    A few windows before each refinement both sides get something of every layer with two misses (`tried_table`); what
    they do in these is what is looked at. Bits do not depend on it.

    The GPU's side is busy from the ring to the start of collecting: experts in seats are read in that time, too, so its
    rate is the one at which both sides end together, not the link's own. Where the stream waits for the CPU, collecting
    starts behind the wait, so that the time is the later side's: the link then keeps its rate, and so it does where
    most layers that asked had nothing in place, or where windows of several groups run side by side, whose kernels
    take the card from each other.
    """

    def __init__(
        self,
        tiers: CountedTiers,
        streams: Streams,
        rates: Rates,
        costs: FixedCosts,
        sizes: Sizes,
        say: Callable[[str], None],
    ) -> None:
        """rates and costs: as measured at load; say: takes log lines."""
        self.rates = rates
        self._at_load, self._costs, self._sizes = rates, costs, sizes
        self._tiers, self._streams, self._say = tiers, streams, say
        times = tiers.gpu_times
        self._room = torch.zeros(times.shape, dtype=times.dtype, pin_memory=times.is_cuda)
        self._mark: Mark | None = None  # behind the copy of times under way
        self._windows, self._asked_at = 0, 0  # so far; when what is under way was asked for
        self._due = sorted([*REFINED_AT, *(windows - TRIED_WINDOWS for windows in REFINED_AT)])
        self._tried_from: tuple[TierCounts, int] | None = None  # and nanoseconds of the GPU's side; None: not trying
        self._set(self._table())

    def before_launch(self, is_read: bool) -> None:
        """Look at both sides, try both, or refine, if it is time."""
        if self._mark is not None and self._mark.is_passed():
            self._mark = None
            self._look()
        self._windows += not is_read
        if not is_read and self._mark is None and self._due and self._windows >= self._due[0]:
            self._due.pop(0)
            self._ask()

    def _ask(self) -> None:
        """Have the device tell what its side has done; if that is where trying begins, try from this launch on."""
        self._asked_at = self._windows
        self._tiers.counts()  # of a GPU it tells at the next call what it is asked for now
        self._streams.copy_behind(self._tiers.gpu_times, self._room)
        self._mark = self._streams.mark_main()
        if self._tried_from is None:
            self._set(tried_table(self._table()))

    def _look(self) -> None:
        """Both sides at the beginning or the end of trying."""
        told = self._tiers.counts(), int(self._room[:, 0].sum())
        if self._tried_from is None:
            self._tried_from = told
            return
        found = refined(self.rates, self._at_load, self._costs, self._seen(*self._tried_from, *told))
        self._say(refinement_in_words(self._asked_at, self.rates, found))
        self.rates, self._tried_from = found, None
        self._set(self._table())

    def _seen(self, before: TierCounts, gpu_before: int, counts: TierCounts, gpu_ns: int) -> Seen:
        in_place, requests = counts.in_place - before.in_place, counts.cpu.requests - before.cpu.requests
        is_alone = len(self._tiers.gpu_times) == 1
        is_told = is_alone and not self._tiers.waits_in_stream and 2 * in_place >= requests
        return Seen(
            requests,
            counts.cpu.bytes - before.cpu.bytes,
            counts.cpu.busy_ns - before.cpu.busy_ns,
            in_place * self._sizes.blob_bytes,
            gpu_ns - gpu_before if is_told else 0,
        )

    def _table(self) -> NDArray[np.int32]:
        sizes = self._sizes
        return share_table(self.rates, sizes.blob_bytes, sizes.most_misses, self._costs, sizes.card_s)

    def _set(self, table: NDArray[np.int32]) -> None:
        self._tiers.set_share(torch.from_numpy(table))
