"""The values of a memory plan: budgets, weights, what grows with slots and context, and which bytes go where.

Pure arithmetic over bytes; knows no device, no file and no tensor. What is decided is in `placement.py`
and `tier_placement.py`.
"""

import math
from dataclasses import dataclass, replace
from enum import Enum

from strata.engine.slot import RECENT_MARKS
from strata.errors import SettingsError
from strata.experts.store_plan import spare_places
from strata.hardware import GpuFacts, MemoryFacts
from strata.models.device.sizes import cells_of
from strata.models.needs import CARD_BYTES, PROGRAM_BYTES, Part, StateBytes
from strata.quant.cell_codes import CellKind

GIB = 1 << 30
# Ways back in a conversation; each keeps the part of the state that does not grow. On a card the recent marks are seats
# beside the slot, which the next mark overwrites; points and the start of a reply go into main memory.
MARKS_A_SLOT = RECENT_MARKS
CHUNKS = "prompts in chunks"  # what they take of a card
STATE, MARKS = "state", "marks to go back to"  # of the slots
LEAST_CONTEXT = 4096  # where no shorter one was asked for


class TableRoom(Enum):
    """Where n-gram tables lie; the values are those of the setting `ngram_table`."""

    AUTO = "auto"  # in main memory if it has room for them, else in files
    MEMORY = "memory"
    FILE = "file"


class Place(Enum):
    """Where bytes lie."""

    CARD = "card"
    RAM = "RAM"


@dataclass(frozen=True)
class Budget:
    """Bytes of one place: what there is, what can still be had, and how much of that may be used."""

    total: int
    free: int
    limit: int | None = None  # a setting

    @property
    def usable(self) -> int:
        """Bytes that a plan may fill."""
        return self.free if self.limit is None else min(self.free, self.limit)


@dataclass(frozen=True)
class Budgets:
    """Both places of one device."""

    card_name: str
    card: Budget
    ram: Budget
    reserve: int = CARD_BYTES  # of the card, for the driver, the kernels' code and what the allocator rounds up


def budgets_of(card: GpuFacts, memory: MemoryFacts, vram_gib: float | None, ram_gib: float | None) -> Budgets:
    """The budgets under the settings. Raises SettingsError if one allows more than there is."""
    whole = memory.total if memory.limit is None else memory.limit
    for name, asked, there in (("vram_gib", vram_gib, card.total_bytes), ("ram_gib", ram_gib, whole)):
        if asked is not None and asked * GIB > there:
            place = card.name if name == "vram_gib" else "this PC, or its limit,"
            raise SettingsError(
                f"setting {name}: {asked:g} does not work: {place} has {there / GIB:.1f} GiB in all; "
                "a smaller number does, and leaving it out takes what is free"
            )
    return Budgets(
        card.name,
        Budget(card.total_bytes, card.free_bytes, None if vram_gib is None else int(vram_gib * GIB)),
        Budget(whole, memory.usable, None if ram_gib is None else int(ram_gib * GIB)),
    )


@dataclass(frozen=True)
class Growth:
    """A part whose size follows from the slots and from their context, on top of what it always takes."""

    name: str
    place: Place
    fixed: int = 0
    per_slot: int = 0
    per_position: float = 0.0  # of the context, whatever the number of slots
    per_token: float = 0.0  # of the context, for each slot

    def at(self, slots: int, context: int) -> int:
        """Bytes with `slots` conversations of up to `context` tokens; a slot has whole runs of cells."""
        grown = (self.per_position + self.per_token * slots) * cells_of(context)
        return self.fixed + self.per_slot * slots + math.ceil(grown)


def conversations(state: StateBytes) -> tuple[Growth, ...]:
    """The state of the slots on the card, their marks beside it; points are `checkpoint_budget`'s matter."""
    return (
        Growth(STATE, Place.CARD, per_slot=state.fixed, per_token=state.per_token),
        Growth(MARKS, Place.CARD, per_slot=MARKS_A_SLOT * state.fixed),
    )


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is made from. Weights in bytes as the device holds them."""

    budgets: Budgets
    weights: dict[Part, int]
    routed_weights: int  # how many numbers the routed experts are, the draft layer's not counted
    growing: tuple[Growth, ...]
    longest_context: int  # of the model
    most_table_bytes: int  # a larger n-gram table stays in main memory, whence a few rows a token are read
    asked_slots: int | None = None
    asked_context: int | None = None
    blobs: tuple[tuple[int, int], ...] = ()  # (bytes of one, how many) of every size of routed experts, all layers
    asked_cache: int | None = None  # bytes of the card for experts; the others stay in main memory
    ranks: int = 0  # experts of a row
    is_exclusive: bool = False  # main memory holds only experts that the card does not
    is_filed: bool = False  # main memory holds experts as it has room; the others stay in the model's files
    filing_problem: str | None = "nobody looked at its files"  # why none can be read from there; None: they can
    most_asked: int = 0  # experts that a window asks of one layer at most
    tables: TableRoom = TableRoom.MEMORY
    table_problem: str | None = "nobody looked at its files"  # why tables cannot be read from there; None: they can
    chunk_rows: int = 0  # of a prompt that pass the card together; 0: it is read as windows
    ring_bytes: int = 0  # of the card for experts on their way to such rows, where not all have a seat
    kv_kind: CellKind = CellKind.BF16  # of the conversations' keys and values
    groups: int = 1  # of slots, whose windows have buffers of their own
    kv_resident: int = 0  # cells a slot of them that the card keeps while main memory has all; 0: all lie on the card
    reserve: int = CARD_BYTES  # of the card: see `Budgets`
    program: int = PROGRAM_BYTES  # of main memory; 0 for a stage that is in the same process as another one

    @property
    def reads_tables(self) -> bool:
        """Whether n-gram tables stay in their files."""
        return self.tables is TableRoom.FILE

    @property
    def large_table_bytes(self) -> int:
        """Of n-gram tables that are too large for the card; 0 if there are none."""
        size = self.weights.get(Part.NGRAM, 0)
        return size if size > self.most_table_bytes else 0

    @property
    def least_context(self) -> int:
        """The shortest context that the plan may come down to."""
        return self.asked_context or min(LEAST_CONTEXT, self.longest_context)

    @property
    def experts(self) -> int:
        """Routed ones of all layers together."""
        return sum(count for _, count in self.blobs)

    @property
    def routed_bytes(self) -> int:
        """Of all routed experts."""
        return self.weights.get(Part.ROUTED, 0)

    @property
    def least_read(self) -> int:
        """Main memory for experts that are read when they are asked for: what one layer of a window asks for."""
        return self.most_asked * max((size for size, _ in self.blobs), default=0)

    def left_in_files(self) -> "PlanRequest":
        """The same where no expert lies in both memories and those that have no room stay in the model's files."""
        return replace(self, is_exclusive=True, is_filed=True)

    def whole_experts(self, size: int) -> int:
        """At most `size` bytes that hold whole experts, and no more than there are."""
        if not self.experts:
            return 0
        one = math.ceil(self.routed_bytes / self.experts)
        return min(self.routed_bytes, max(0, size) // one * one)

    def spare_bytes(self, seats: int) -> int:
        """What main memory holds beside the experts that it must, so that they can trade places with `seats` bytes.

        Of several blob sizes the most that it may be: which of them the seats have is decided later.
        """
        if not self.is_exclusive:
            return 0
        return min(seats, sum(size * spare_places(count, count) for size, count in self.blobs))


@dataclass(frozen=True)
class PlannedPart:
    """One line of a plan."""

    name: str
    place: Place
    size: int


@dataclass(frozen=True)
class MemoryPlan:
    """What goes where. `refusal` says in a sentence why it does not fit, None if it does.

    seats: bytes of the card for experts, the others lie in main memory; None: all experts lie on the card.
    """

    request: PlanRequest
    slots: int
    context: int
    parts: tuple[PlannedPart, ...]
    seats: int | None = None
    refusal: str | None = None

    @property
    def seat_share(self) -> float:
        """How much of the experts the card holds, 0 to 1."""
        return 1.0 if self.seats is None else self.seats / self.request.routed_bytes

    def used(self, place: Place) -> int:
        """Bytes of a place, the reserve not counted."""
        return sum(part.size for part in self.parts if part.place is place)

    def left(self, place: Place) -> int:
        """Bytes of a place's budget that nothing takes; below 0 where the plan does not fit."""
        budgets = self.request.budgets
        if place is Place.RAM:
            return budgets.ram.usable - self.used(place)
        return budgets.card.usable - self.request.reserve - self.used(place)
