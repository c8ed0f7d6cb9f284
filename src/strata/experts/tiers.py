"""One stage's experts in three tiers: seats on the device, main memory read in place, the CPU's threads.

Knows the mailboxes in which windows ask the CPU; when they may, and what went wrong meanwhile, is in `asking.py`. Who
has a seat, and how much is read in place, is decided elsewhere; an expert's bits are the same everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from strata.experts.asking import Answers, AskingWindows, AskingWords
from strata.experts.doorbell import ANSWER_LIMIT_S, DoorbellCounters, DoorbellService, LayerExperts
from strata.experts.expert_files import ReadCache
from strata.experts.tier_tables import TierTables
from strata.kernels.expert_plan.tables import LayerTables, Mailbox, PlanState
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout


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


class _Launches:
    """What comes before each launch: who follows is called, and then addresses change."""

    def __init__(self, tables: TierTables) -> None:
        self.tables = tables
        self.follow: Callable[[bool], None] | None = None
        self.seats_are_held = False

    def before(self, group: int, is_read: bool) -> None:
        """On the stream on which the group's window is about to be launched."""
        if self.follow is not None and not self.seats_are_held:
            self.follow(is_read)
        self.tables.flush(group)


class ExpertTiers:
    """See the module. Not thread-safe, but for `stop`, and `waiting_for` of `windows` as long as it is not closed.

    Windows of a group of slots run one after another, so one mailbox is enough for each group: `windows[group]` is told
    when they are in flight.
    """

    def __init__(
        self,
        places: ExpertPlaces,
        pool: Pool,
        device: torch.device,
        size: WindowSize,
        limit_s: float = ANSWER_LIMIT_S,
        *,
        waits_in_stream: bool = False,
        reads: ReadCache | None = None,
        groups: int = 1,
    ) -> None:
        """`places` is kept: its memory is read as long as this object lives. limit_s: of an answer of the CPU.

        waits_in_stream: the device's stream waits for answers, at the mailbox's gate, instead of a kernel.
        reads: gives experts that lie nowhere; None: there are none such. groups: of slots, each with its own windows.
        Everything that windows do not share is on `device`; a mailbox is pinned if that is a GPU.
        """
        self._places = places
        layouts = [places.layout(layer) for layer in range(len(places.layers))]
        is_quantized = not any(layout.gate.code.is_float or layout.up.code.is_float for layout in layouts)
        self.mailboxes = tuple(
            Mailbox.create(
                size.rows,
                size.ranks,
                layouts[0].gate.columns,
                is_quantized=is_quantized,
                is_pinned=device.type == "cuda",
                has_gate=waits_in_stream,
                holds_next=groups > 1,
            )
            for _ in range(groups)
        )
        self.waits_in_stream = waits_in_stream
        self.gpu_times = torch.zeros(groups, 2, dtype=torch.int64, device=device)  # of every group: see `PlanState`
        self.states = tuple(PlanState.create(device, times) for times in self.gpu_times)
        self._reads_in_place = device.type == "cpu" or places.is_pinned
        in_place = places.in_ram if self._reads_in_place else np.zeros_like(places.in_ram)
        most_misses = min(size.rows * size.ranks, places.resident.shape[1])
        self._tables = TierTables(places.resident, in_place, most_misses, device, groups)
        layers = [LayerExperts(layout, row) for layout, row in zip(layouts, places.in_ram.tolist(), strict=True)]
        self._service = DoorbellService(pool, layers, self.mailboxes, limit_s, memory=places, reads=reads)
        self.reads = reads
        what, name_of = "experts on the CPU", partial(_name_of, places.layers)
        words = AskingWords(what, f"the threads that compute {what}", name_of, "none waits for the CPU")
        self._answers = Answers(self._service, words)
        self._launches = _Launches(self._tables)
        boxes = enumerate(zip(self.mailboxes, self.states, strict=True))
        self.windows = tuple(
            AskingWindows(self._answers, {group: box}, partial(self._launches.before, group)) for group, box in boxes
        )
        self._behind_prompt: Callable[[NDArray[np.int32]], None] | None = None

    @property
    def tables(self) -> list[LayerTables]:
        """Of every layer, as the first group has them; views, on the device."""
        return self._tables.layers()

    @property
    def asked(self) -> torch.Tensor:
        """int32 [layers, experts] on the device: how many windows asked for each expert; wraps."""
        return self._tables.asked

    def layer(self, index: int, group: int = 0) -> LayerTiers:
        """What a group's launches of one layer take; layers are counted as in `places`."""
        tables = self._tables.layers(group)[index]
        return LayerTiers(tables, self.mailboxes[group], self.states[group], index)

    def set_resident(self, layer: int, expert: int, address: int) -> None:
        """From each group's next launch on this seat holds the expert's bytes, 0: none does. Behind those so far."""
        self._tables.set_resident(layer, expert, address)

    def set_in_ram(self, layer: int, expert: int, address: int) -> None:
        """Where the expert lies in main memory, 0: it does not; for the CPU now, in place from the next launches on.

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

    def follow(
        self,
        before_launch: Callable[[bool], None],
        behind_prompt: Callable[[NDArray[np.int32]], None] | None = None,
    ) -> None:
        """Have this called before every launch, with whether it is a read: the place of who moves experts.

        behind_prompt: behind a prompt that passed in chunks, see `prompt_was_read`.
        """
        self._launches.follow, self._behind_prompt = before_launch, behind_prompt

    @property
    def seats_are_held(self) -> bool:
        """See `hold_seats`."""
        return self._launches.seats_are_held

    def hold_seats(self) -> None:
        """Until `release_seats` nobody who follows is called, so that every expert stays where it is."""
        self._launches.seats_are_held = True

    def release_seats(self) -> None:
        """Seats may change again, behind what was launched so far."""
        self._launches.seats_are_held = False

    def prompt_was_read(self, asked: NDArray[np.int32]) -> None:
        """asked [layers, experts]: how many of a prompt's last rows took each expert; its reply begins now."""
        if self._behind_prompt is not None:
            self._behind_prompt(asked)

    def counts(self) -> TierCounts:
        """So far; of a GPU what the call before this one asked it for, so that nobody waits."""
        found = self._tables.totals()
        return TierCounts(found.seats, found.in_place, found.on_cpu, self._service.counters())

    def stop(self) -> None:
        """See `Answers.stop`."""
        self._answers.stop()

    def close(self) -> None:
        """Stop, and let go of the threads and of who follows; nothing is in flight any more."""
        # Who follows knows these tiers: together they would outlive their last user.
        self._launches.follow = self._behind_prompt = None
        self._answers.close()


def _name_of(layers: Sequence[str], layer: int) -> str:
    return f"layer {layer} ({layers[layer]})" if 0 <= layer < len(layers) else f"layer {layer}, which is none"
