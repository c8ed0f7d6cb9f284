"""One stage's experts in three tiers: seats on the device, main memory read in place, the CPU's threads.

Knows the mailbox in which windows ask the CPU, when windows are in flight, and what went wrong meanwhile. Who has a
seat, and how much is read in place, is decided elsewhere; an expert's bits are the same everywhere.
"""

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from strata.errors import DeviceLostError, EngineError
from strata.experts.doorbell import (
    ANSWER_LIMIT_S,
    DoorbellCounters,
    DoorbellService,
    DoorbellState,
    LayerExperts,
)
from strata.experts.tier_tables import TierTables
from strata.kernels.expert_plan.tables import RAISED, LayerTables, Mailbox, PlanState
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout

REWIND_BEHIND = 1 << 30  # requests: both flags start again long before they reach RAISED
BOX = 0  # windows of a stage run one after another, so one mailbox is enough


class ExpertPlaces(Protocol):
    """Where experts' bytes lie; `experts.store.ExpertStore` is one."""

    layers: tuple[str, ...]  # prefixes in the model's order
    resident: NDArray[np.int64]  # addresses of seats [layers, experts], 0: none
    in_ram: NDArray[np.int64]  # addresses in main memory [layers, experts], 0: not there

    @property
    def is_pinned(self) -> bool:
        """Whether a card can read main memory in place."""
        ...

    def layout(self, layer: int) -> BlobLayout:
        """Of the blobs of one layer."""
        ...


@dataclass(frozen=True)
class WindowSize:
    """The most that one window asks of a layer."""

    rows: int
    ranks: int  # experts of a row


@dataclass(frozen=True)
class LayerTiers:
    """What the launches of one layer's experts read and write beside their own buffers."""

    tables: LayerTables
    mailbox: Mailbox
    state: PlanState
    layer: int  # as whoever answers counts them: of the layers that have experts


@dataclass(frozen=True)
class TierCounts:
    """Distinct experts of every layer of every window so far, by where they were computed, and the CPU's work."""

    seats: int
    in_place: int
    on_cpu: int
    cpu: DoorbellCounters


@dataclass
class _Flight:
    """A window in flight, and why it failed."""

    failure: EngineError | None = None


class ExpertTiers:
    """See the module. Not thread-safe, but for `stop`, and `waiting_for` as long as it is not closed."""

    def __init__(
        self,
        places: ExpertPlaces,
        pool: Pool,
        device: torch.device,
        size: WindowSize,
        limit_s: float = ANSWER_LIMIT_S,
        *,
        waits_in_stream: bool = False,
    ) -> None:
        """`places` is kept: its memory is read as long as this object lives. limit_s: of an answer of the CPU.

        waits_in_stream: the device's stream waits for answers, at the mailbox's gate, instead of a kernel.
        Everything that windows do not share is on `device`; the mailbox is pinned if that is a GPU.
        """
        self._places = places
        layouts = [places.layout(layer) for layer in range(len(places.layers))]
        is_quantized = not any(layout.gate.code.is_float or layout.up.code.is_float for layout in layouts)
        self.mailbox = Mailbox.create(
            size.rows,
            size.ranks,
            layouts[0].gate.columns,
            is_quantized=is_quantized,
            is_pinned=device.type == "cuda",
            has_gate=waits_in_stream,
        )
        self.state = PlanState.create(device)
        self._reads_in_place = device.type == "cpu" or places.is_pinned
        in_place = places.in_ram if self._reads_in_place else np.zeros_like(places.in_ram)
        most_misses = min(size.rows * size.ranks, places.resident.shape[1])
        self._tables = TierTables(places.resident, in_place, most_misses, device)
        layers = [LayerExperts(layout, row) for layout, row in zip(layouts, places.in_ram.tolist(), strict=True)]
        self._service = DoorbellService(pool, layers, [self.mailbox], limit_s, memory=places)
        self._end = weakref.finalize(self, self._service.stop)  # also when the process ends: no kernel waits on
        self._flights: deque[_Flight] = deque()
        self._failures = 0  # seen so far
        self._broken: DeviceLostError | None = None
        self._before_launch: Callable[[bool], None] | None = None

    @property
    def tables(self) -> list[LayerTables]:
        """Of every layer; views, on the device."""
        return self._tables.layers()

    @property
    def asked(self) -> torch.Tensor:
        """int32 [layers, experts] on the device: how many windows asked for each expert; wraps."""
        return self._tables.asked

    def layer(self, index: int) -> LayerTiers:
        """What the launches of one layer take; layers are counted as in `places`."""
        return LayerTiers(self.tables[index], self.mailbox, self.state, index)

    def set_resident(self, layer: int, expert: int, address: int) -> None:
        """From the next `launched` on this seat holds the expert's bytes, 0: none does. Behind all launches so far."""
        self._tables.set_resident(layer, expert, address)

    def set_in_ram(self, layer: int, expert: int, address: int) -> None:
        """Where the expert lies in main memory, 0: it does not; for the CPU now, in place from the next `launched` on.

        No window in flight may still need what was there before.
        """
        self._service.place(layer, expert, address)
        if self._reads_in_place:
            self._tables.set_in_place(layer, expert, address)

    def set_share(self, table: torch.Tensor) -> None:
        """table int32 [most misses + 1] in main memory: how many of n distinct misses the device reads in place.

        From the next launch on; nobody waits. Raises ValueError for another size, or a number that is not 0 to n.
        """
        self._tables.set_share(table)

    def follow(self, before_launch: Callable[[bool], None]) -> None:
        """Have this called before every launch, with whether it is a read: the place of who moves experts."""
        self._before_launch = before_launch

    def launched(self, *, is_read: bool = False) -> None:
        """A window, or a read, is about to be launched behind those in flight: from now on it may ask.

        Raises DeviceLostError if nobody answers any more.
        """
        if self._broken is not None:
            raise self._broken
        if self._before_launch is not None:
            self._before_launch(is_read)
        self._tables.flush()
        is_first = not self._flights
        self._flights.append(_Flight())
        if is_first:
            self._begin()

    def landed(self) -> None:
        """The next of the windows in flight has ended on the device; without one in flight the threads sleep.

        Raises EngineError, with the layer and the cause, if an answer failed while the window was in flight: its rows
        mean nothing. DeviceLostError: there was no answer, and there never will be one again. ValueError: none is in
        flight.
        """
        if not self._flights:
            raise ValueError("no window is in flight, so none can have landed")
        self._note_failures(self._service.state(BOX))
        flight = self._flights.popleft()
        if not self._flights and self._broken is None:
            self._service.end(BOX)
        if self._broken is not None:
            raise self._broken
        if flight.failure is not None:
            raise flight.failure

    def forget(self) -> None:
        """All windows in flight have ended on the device, and nobody asks what came of them.

        Their failures are no later window's; that nobody answers any more is told by the next `launched`. Raises
        EngineError if the service cannot be spoken with; nothing is in flight even then.
        """
        if not self._flights:
            return
        try:
            self._note_failures(self._service.state(BOX))
        finally:
            self._flights.clear()
        if self._broken is None:
            self._service.end(BOX)

    def waiting_for(self) -> str:
        """What windows are waiting for, in words."""
        state = self._service.state(BOX)
        if not state.is_waiting or state.done >= RAISED:
            return f"{len(self._flights)} windows are in flight, and none waits for the CPU"
        return (
            f"a window waits for the CPU's answer to request {state.door}: {state.rows} rows, {state.entries} places "
            f"of experts of {self._name(state.layer)}"
        )

    def counts(self) -> TierCounts:
        """So far; of a GPU what the call before this one asked it for, so that nobody waits."""
        found = self._tables.totals()
        return TierCounts(found.seats, found.in_place, found.on_cpu, self._service.counters())

    def stop(self) -> None:
        """Raise every flag, so that no window waits for an answer, and end the threads. From any thread, and twice."""
        self._broken = self._broken or DeviceLostError("the threads that compute experts on the CPU were stopped")
        self._service.stop()

    def close(self) -> None:
        """Stop, and let go of the threads and of who follows; nothing is in flight any more."""
        self._before_launch = None  # who follows knows these tiers: together they would outlive their last user
        self.stop()
        self._service.close()

    def _note_failures(self, state: DoorbellState) -> None:
        """All windows in flight are told what failed since this was looked at last."""
        if state.failures > self._failures:
            self._failures = state.failures
            cause = f"{self._name(state.failed_layer)}: {state.failure}"
            for flight in self._flights:  # whose request it was is not told; those behind it go on from its rows
                flight.failure = EngineError(f"experts on the CPU failed in {cause}")
            if state.is_late:
                self._broken = DeviceLostError(
                    f"experts on the CPU gave no answer in {cause}; all that waited was let go, and the engine must be "
                    "started again"
                )
        if state.done >= RAISED and self._broken is None:
            self.stop()

    def _begin(self) -> None:
        """Whatever ends this early, an interrupt too, leaves nothing in flight."""
        try:
            self._rewind_if_due()
            self._service.begin(BOX)
        except BaseException as reason:
            self._flights.clear()
            state = self._service.state(BOX)
            if state.is_in_flight:
                self._service.end(BOX)
            self._note_failures(state)
            if isinstance(reason, EngineError) and self._broken is not None:
                raise self._broken from reason
            raise

    def _rewind_if_due(self) -> None:
        if int(self.mailbox.door) > REWIND_BEHIND:
            self._service.rewind(BOX)
            self.state.number.zero_()

    def _name(self, layer: int) -> str:
        layers = self._places.layers
        return f"layer {layer} ({layers[layer]})" if 0 <= layer < len(layers) else f"layer {layer}, which is none"
