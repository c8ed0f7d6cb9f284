"""The process of a stage that another one leads: carries out its calls, in order, until the leader ends it or is gone.

Knows calls, and a part of a model that stands ready; not how that is loaded, and no request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata.engine import stage_calls as calls
from strata.engine.chain_stage import ChainStage
from strata.engine.hand_off import HandOff
from strata.engine.remote_chunks import ServedChunks
from strata.engine.remote_keeper import copy_key
from strata.engine.remote_line import Line
from strata.engine.slot_keeper import Point, SlotKeeper
from strata.errors import DeviceLostError, EngineError
from strata.experts.host_memory import Pinning


@dataclass(frozen=True)
class ServedPart:
    """What this process has of a model."""

    groups: Sequence[ChainStage]  # the stages of this process, one a group of slots
    keeper: SlotKeeper
    ways: Mapping[int, HandOff]  # that begin or end here, by their numbers
    pinning: Pinning | None = None  # of main memory that its card copies to
    chunks: ServedChunks | None = None  # None: prompts are read as windows


def serve_part(line: Line, part: ServedPart) -> str:
    """Carry out calls until `End`; returns its reason. Raises LineLost if the leader is gone, or what a call raises."""
    while True:
        call = line.receive()
        if isinstance(call, calls.End):
            return call.reason
        answer = _answered(part, call)
        if answer is not None:
            line.send(answer)
        elif not (_launch(part, call) or _keep(part, call) or _read(part, call)):
            raise EngineError(f"{type(call).__name__} is no call to a stage")


def _launch(part: ServedPart, call: object) -> bool:
    """What a window is made of; whether the call is that."""
    groups, ways = part.groups, part.ways
    match call:
        case calls.SetPlan(serial, parts, group):
            groups[group].set_plan(serial, parts)
        case calls.Run(variant, bucket, group):
            groups[group].run(variant, bucket)
        case calls.Give(way, crossing, group):
            groups[group].give(ways[way], crossing)
        case calls.Take(way, crossing, group):
            groups[group].take(ways[way], crossing)
        case calls.BeforeGiving(way, group):
            groups[group].before_giving(ways[way])
        case calls.SetRows(bucket, parts, group):
            groups[group].set_rows(bucket, parts)
        case calls.SetAccepted(counts, group):
            groups[group].set_accepted(counts)
        case calls.SetReply(slot, start):
            groups[0].set_reply(slot, start)
        case calls.EndReply(slot):
            groups[0].end_reply(slot)
        case calls.WindowBegins(is_read, group):
            for each in groups[group].asked:
                each.launched(is_read=is_read)
        case calls.WindowCutOff(group):
            for each in groups[group].asked:
                each.cut_off()
        case calls.WindowsForgotten(group):
            for each in groups[group].asked:
                each.forget()
        case _:
            return False
    return True


def _keep(part: ServedPart, call: object) -> bool:
    """What becomes of the slots' states; whether the call is about that."""
    keeper = part.keeper
    match call:
        case calls.SlotReset(slot):
            keeper.reset(slot)
        case calls.SlotCopied(source, target, rows):
            keeper.copy(source, target, rows)
        case calls.SlotSaved(slot, key):
            keeper.save(slot, copy_key(key))
        case calls.SlotRestored(slot, key):
            keeper.restore(slot, copy_key(key))
        case calls.PointMade(number):
            keeper.room_for(Point(number))
        case calls.PointDropped(number):
            keeper.drop(Point(number))
        case calls.SlotParked(slot, key, rows):
            keeper.park(slot, key, rows)
        case calls.ParkedBrought(key, slot, rows, is_whole):
            keeper.bring(key, slot, rows, is_whole=is_whole)
        case calls.ParkedDropped(key):
            keeper.drop_parked(key)
        case _:
            return False
    return True


def _read(part: ServedPart, call: object) -> bool:
    """What becomes of a chunk of a prompt; whether the call is about that."""
    chunks = part.chunks
    if chunks is None:
        return False
    match call:
        case calls.ChunkBegins():
            chunks.begin(call)
        case calls.ChunkGoesOn(way):
            chunks.go_on(way)
        case calls.ChunkEnds():
            chunks.end()
        case _:
            return False
    return True


def _answered(part: ServedPart, call: object) -> calls.Answer | None:
    """What is answered to a call that asks; None for any other."""
    match call:
        case calls.AskLogits(bucket, start, stop, group):
            logits = part.groups[group].logits_on_host(bucket, start, stop)
            return calls.Answer(logits.contiguous().numpy().tobytes())
        case calls.AskWait():
            part.groups[0].wait()
            return calls.Answer()
        case calls.AskLanded(group):
            return calls.Answer(problem=_problem(part.groups[group]))
        case calls.AskRoom(points):
            notice = part.keeper.make_room(points, part.pinning)
            return calls.Answer(text=notice, count=part.keeper.free_points)
        case calls.AskParking(size):
            notice = part.keeper.make_parking(size, part.pinning)
            return calls.Answer(text=notice, count=part.keeper.parking.limit)
        case calls.AskChunkStep() if part.chunks is not None:
            return _stepped(part.chunks)
        case calls.AskMoves():
            return calls.Answer(count=int(part.keeper.moves_on()))
    return None


def _stepped(chunks: ServedChunks) -> calls.Answer:
    """Raises DeviceLostError if nothing goes on from there; other failures end the read, which is told."""
    try:
        return chunks.step()
    except DeviceLostError:
        raise
    except EngineError as failure:
        return calls.Answer(problem=str(failure))


def _problem(stage: ChainStage) -> str | None:
    """Why a window that has ended means nothing. Raises DeviceLostError if nothing goes on from there."""
    problems = []
    for each in stage.asked:
        try:
            each.landed()
        except DeviceLostError:
            raise
        except EngineError as failure:
            problems.append(str(failure))
    return "; ".join(problems) or None
