"""What the leader of a model's stages says to the stage of another process, and what comes back: plain frozen values.

Knows words, slots and keys; no socket and no tensor. Calls are carried out in order. Only those that ask are answered;
a call that fails ends the other process, and `CallFailed` says why.

    stage -> leader     PartOffer
    leader -> stage     LoadPart
    stage -> leader     PartLoaded
    leader -> stage     any calls, then End
    stage -> leader     Answer to each call that asks; CallFailed at any time, before it ends
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata.engine.hand_off import Crossing
from strata.engine.memory_plan import Budgets
from strata.engine.slot_keeper import SlotKeeper
from strata.engine.stage_programs import Variant
from strata.engine.window_words import RowsPart
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.slots import ReplyStart


@dataclass(frozen=True)
class PartOffer:
    """What a process has for a stage, and under which settings it was started."""

    budgets: Budgets
    settings: Mapping[str, str]  # by name, as Python writes them
    host: str
    device: str  # cpu, cuda:0, ..
    has_nccl: bool = False


@dataclass(frozen=True)
class LoadPart:
    """What each process plans all stages with: the same everywhere, so that each comes to the same plan."""

    cuts: Sequence[int]  # the first layer of each stage but the first one
    budgets: Sequence[Budgets]  # of each stage
    slots: int  # of the plan
    context: int
    by_nccl: bool  # tensors go from card to card; else by gloo, from main memory to main memory


@dataclass(frozen=True)
class SetPlan:
    """See `Stage.set_plan`."""

    serial: int
    parts: Sequence[PlannedPart]
    group: int = 0


@dataclass(frozen=True)
class SetReply:
    """See `Stage.set_reply`."""

    slot: int
    start: ReplyStart


@dataclass(frozen=True)
class EndReply:
    """See `Stage.end_reply`."""

    slot: int


@dataclass(frozen=True)
class SetRows:
    """See `Stage.set_rows`."""

    bucket: int
    parts: Sequence[RowsPart]
    group: int = 0


@dataclass(frozen=True)
class SetAccepted:
    """See `Stage.set_accepted`."""

    counts: Sequence[int]
    group: int = 0


@dataclass(frozen=True)
class Run:
    """Launch a variant over a bucket."""

    variant: Variant
    bucket: int
    group: int = 0


@dataclass(frozen=True)
class Give:
    """Send by a way, behind what was launched."""

    way: int
    crossing: Crossing
    group: int = 0


@dataclass(frozen=True)
class Take:
    """Receive by a way, in front of what is launched from now on."""

    way: int
    crossing: Crossing
    group: int = 0


@dataclass(frozen=True)
class BeforeGiving:
    """What was sent by a way may be written over by what is launched from now on."""

    way: int
    group: int = 0


@dataclass(frozen=True)
class AskLogits:
    """Rows of the last forward of a bucket; answered with float32 [rows, vocabulary]."""

    bucket: int
    start: int
    stop: int
    group: int = 0


@dataclass(frozen=True)
class AskWait:
    """Answered when everything that was launched has ended."""


@dataclass(frozen=True)
class WindowBegins:
    """See `flights.Answering.launched`."""

    is_read: bool = False
    group: int = 0


@dataclass(frozen=True)
class WindowCutOff:
    """See `flights.Answering.cut_off`."""

    group: int = 0


@dataclass(frozen=True)
class WindowsForgotten:
    """See `flights.Answering.forget`."""

    group: int = 0


@dataclass(frozen=True)
class AskLanded:
    """See `flights.Answering.landed`; answered with the problem of those who compute what the window asked for."""

    group: int = 0


@dataclass(frozen=True)
class SlotReset:
    """See `SlotKeeper.reset`."""

    slot: int


@dataclass(frozen=True)
class SlotCopied:
    """See `SlotKeeper.copy`."""

    source: int
    target: int
    rows: int


@dataclass(frozen=True)
class PlainKey:
    """A `CopyKey`: a seat of a slot, or, where that is None, a point."""

    slot: int | None
    number: int


@dataclass(frozen=True)
class SlotSaved:
    """See `SlotKeeper.save`."""

    slot: int
    key: PlainKey


@dataclass(frozen=True)
class SlotRestored:
    """See `SlotKeeper.restore`."""

    slot: int
    key: PlainKey


@dataclass(frozen=True)
class PointMade:
    """See `SlotKeeper.room_for`."""

    number: int


@dataclass(frozen=True)
class PointDropped:
    """See `SlotKeeper.drop`."""

    number: int


@dataclass(frozen=True)
class AskRoom:
    """See `SlotKeeper.make_room`; answered with its notice and with how many points there is room for."""

    points: int


@dataclass(frozen=True)
class AskParking:
    """See `ParkingStage.make_parking`; answered with its notice and with the bytes that there are."""

    size: int


@dataclass(frozen=True)
class SlotParked:
    """See `ParkingStage.park`."""

    slot: int
    key: int
    rows: int


@dataclass(frozen=True)
class ParkedBrought:
    """See `ParkingStage.bring`."""

    key: int
    slot: int
    rows: int
    is_whole: bool


@dataclass(frozen=True)
class ParkedDropped:
    """See `ParkingStage.drop_parked`."""

    key: int


@dataclass(frozen=True)
class AskMoves:
    """See `ParkingStage.moves_on`; answered with 1 if something moves."""


@dataclass(frozen=True)
class ChunkBegins:
    """A chunk of a prompt comes to the stage, by a way, from the one in front of it."""

    way: int
    slot: int
    position: int
    token_ids: Sequence[int]
    points: Mapping[str, int]  # where the state in front of some of its rows is kept, by row
    first_logit_row: int  # of the chunk; as many as it has rows: none is wanted here
    counts: bool  # whether its last rows' experts are counted


@dataclass(frozen=True)
class AskChunkStep:
    """Go on with the chunk by a layer, or by some rows' logits; answered with these, and 1 if it was the last step."""


@dataclass(frozen=True)
class ChunkGoesOn:
    """The chunk is through, and goes to the next stage by a way; its memory is free."""

    way: int


@dataclass(frozen=True)
class ChunkEnds:
    """The chunk is done with, or given up; its memory is free. Without a chunk nothing happens."""


@dataclass(frozen=True)
class End:
    """Nothing more comes; the process ends."""

    reason: str = ""  # why, where it is no end as it should be


@dataclass(frozen=True)
class KeptBytes:
    """See the fields of `SlotKeeper`."""

    slot_bytes: int
    copy_bytes: int
    point_bytes: int
    parked_fixed: int  # bytes of a parked conversation, whatever its length
    parked_per_token: float

    @classmethod
    def of(cls, keeper: SlotKeeper) -> "KeptBytes":
        """What the other process says of its keeper."""
        parking = keeper.parking
        return cls(keeper.slot_bytes, keeper.copy_bytes, keeper.point_bytes, parking.fixed, parking.per_token)


@dataclass(frozen=True)
class PartFacts:
    """What is known of a stage of another process without asking it."""

    most_rows: int  # of a window
    vocabulary: int
    asks: bool  # whether its windows ask for experts or rows of tables while they run
    chunk_rows: int  # of a prompt that pass it together; 0: it reads prompts as windows
    kept: KeptBytes


@dataclass(frozen=True)
class PartLoaded:
    """The stage stands ready for calls."""

    facts: PartFacts
    notices: Sequence[str] = ()  # sentences for the user


@dataclass(frozen=True)
class Answer:
    """To a call that asks."""

    content: bytes = b""
    text: str | None = None
    count: int = 0
    problem: str | None = None  # of what was asked for; the stage goes on


@dataclass(frozen=True)
class CallFailed:
    """The stage cannot go on; its process ends."""

    error: str  # one sentence
    is_users_mistake: bool = False  # a wrong path or setting


CALLS: tuple[type, ...] = (
    LoadPart,
    SetPlan,
    SetReply,
    EndReply,
    SetRows,
    SetAccepted,
    Run,
    Give,
    Take,
    BeforeGiving,
    AskLogits,
    AskWait,
    WindowBegins,
    WindowCutOff,
    WindowsForgotten,
    AskLanded,
    SlotReset,
    SlotCopied,
    SlotSaved,
    SlotRestored,
    PointMade,
    PointDropped,
    AskRoom,
    AskParking,
    SlotParked,
    ParkedBrought,
    ParkedDropped,
    AskMoves,
    ChunkBegins,
    AskChunkStep,
    ChunkGoesOn,
    ChunkEnds,
    End,
)

ANSWERS: tuple[type, ...] = (PartOffer, PartLoaded, Answer, CallFailed)
