"""The share that the GPU reads in place, refined by what both sides did: after 48, 96 and 192 windows.

Knows counters and the table; what rates make of them is decided in `share`. Nothing here waits for the device.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from strata.experts.share import REFINED_AT, Measured, Rates, refined, refinement_in_words, share_table
from strata.experts.streams import Mark, Streams
from strata.experts.tiers import TierCounts
from strata.kernels.expert_plan.tables import Mailbox, PlanState


class CountedTiers(Protocol):
    """What the share is refined with; `experts.tiers.ExpertTiers` is one."""

    mailbox: Mailbox
    state: PlanState

    def counts(self) -> TierCounts:
        """So far; of a GPU those of a moment ago."""
        ...

    def set_share(self, table: torch.Tensor) -> None:
        """int32 [most misses + 1] in main memory."""
        ...


class ShareTuner:
    """Not thread-safe: called by whoever launches, before each launch.

    The GPU's side is busy from the ring to the start of collecting: experts in seats are read in that time, too, so its
    rate is the one at which both sides end together, not the link's own. Where less than one expert a ring was read in
    place, that time says nothing about reading in place. Where the stream waits for the CPU, collecting starts behind
    the wait, so that the time is the later side's: the link then keeps its rate.
    """

    def __init__(
        self,
        tiers: CountedTiers,
        streams: Streams,
        rates: Rates,
        blob_bytes: int,
        most_misses: int,
        say: Callable[[str], None],
    ) -> None:
        """rates: as measured at load; blob_bytes: of an expert, all layers averaged; say: takes log lines."""
        self.rates = rates
        self._tiers, self._streams, self._say = tiers, streams, say
        self._blob_bytes, self._most = blob_bytes, most_misses
        times = tiers.state.times
        self._room = torch.zeros(times.shape, dtype=times.dtype, pin_memory=times.is_cuda)
        self._mark: Mark | None = None  # behind the copy of times under way
        self._windows, self._refining = 0, 0  # so far; when the refinement under way was asked for
        self._due = list(REFINED_AT)
        self._before = (tiers.counts(), 0)  # and nanoseconds of the GPU's side, up to the last refinement
        self._set()

    def before_launch(self, is_read: bool) -> None:
        """Refine if it is time."""
        if self._mark is not None and self._mark.is_passed():
            self._mark = None
            self._refine()
        self._windows += not is_read
        if not is_read and self._mark is None and self._due and self._windows >= self._due[0]:
            self._due.pop(0)
            self._refining = self._windows
            self._tiers.counts()  # of a GPU it tells at the next call what it is asked for now
            self._streams.copy_behind(self._tiers.state.times, self._room)
            self._mark = self._streams.mark_main()

    def _refine(self) -> None:
        (before, gpu_before), counts, gpu_ns = self._before, self._tiers.counts(), int(self._room[0])
        self._before = counts, gpu_ns
        cpu = Measured(counts.cpu.bytes - before.cpu.bytes, counts.cpu.busy_ns - before.cpu.busy_ns)
        in_place, rings = counts.in_place - before.in_place, counts.cpu.requests - before.cpu.requests
        is_told = in_place >= rings and self._tiers.mailbox.gate is None
        gpu = Measured(in_place * self._blob_bytes, gpu_ns - gpu_before) if is_told else Measured(0, 0)
        found = refined(self.rates, cpu, gpu)
        self._say(refinement_in_words(self._refining, self.rates, found))
        self.rates = found
        self._set()

    def _set(self) -> None:
        self._tiers.set_share(torch.from_numpy(share_table(self.rates, self._blob_bytes, self._most)))
