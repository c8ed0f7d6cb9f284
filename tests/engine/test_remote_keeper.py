"""What a stage of another process keeps of its slots is what a keeper here would keep, told by calls over a line."""

import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from strata.engine import stage_calls as calls
from strata.engine.remote_keeper import RemoteKeeper
from strata.engine.remote_line import Line, LineLost
from strata.engine.slot_keeper import Point, Seat, SlotKeeper, StateKeeper
from strata.engine.stage_line import StageLine
from strata.engine.stage_process import ServedPart, serve_part
from strata.errors import EngineError
from strata.models.device.state import DeviceState
from strata.quant.cell_codes import CellKind
from tests.engine.stages import described

SLOTS, ROWS, ROOM = 2, 64, 1 << 22


def new_state() -> DeviceState:
    model = described("qwen4_exp")[1]
    return DeviceState.empty(model.sizes, SLOTS, 128, CellKind.BF16, torch.device("cpu"))


@pytest.fixture
def remote() -> Iterator[tuple[RemoteKeeper, DeviceState]]:
    """A keeper here, and the state of the slots that it is about."""
    ours, theirs = socket.socketpair()
    state = new_state()
    keeper = StateKeeper(state)
    served = ServedPart((), keeper, {})
    thread = threading.Thread(target=serve_part, args=(Line(theirs, calls.CALLS), served))
    thread.start()
    line = StageLine.open(1, Line(ours, calls.ANSWERS))
    yield RemoteKeeper(line, calls.KeptBytes.of(keeper)), state
    line.end()
    thread.join()


def use(keeper: SlotKeeper) -> list[object]:
    """Everything that is done with a keeper, and what it says of itself on the way."""
    told: list[object] = [keeper.make_room(2, None), keeper.make_parking(ROOM, None), keeper.free_points]
    told += [keeper.slot_bytes, keeper.copy_bytes, keeper.point_bytes, keeper.parking]
    keeper.save(0, Seat(0, 1))
    for number in (1, 2, 3):  # the third has memory of its own
        keeper.room_for(Point(number))
        told.append(keeper.free_points)
    keeper.save(0, Point(1))
    keeper.park(0, 7, ROWS)
    while keeper.moves_on():
        pass
    keeper.reset(0)
    keeper.restore(1, Point(1))
    keeper.copy(1, 0, ROWS)
    keeper.bring(7, 1, ROWS, is_whole=True)
    while keeper.moves_on():
        pass
    for number in (3, 1):
        keeper.drop(Point(number))
        told.append(keeper.free_points)
    keeper.drop_parked(7)
    keeper.restore(1, Seat(0, 1))
    told.append(keeper.moves_on())
    return told


def filled(state: DeviceState) -> None:
    generator = torch.Generator().manual_seed(8)
    for tensor in state.tensors:
        tensor.copy_(torch.randint(0, 8, tensor.shape, generator=generator))


def test_calls_do_what_a_keeper_here_does(remote: tuple[RemoteKeeper, DeviceState]) -> None:
    keeper, state = remote
    here = new_state()
    filled(here)
    for found, wanted in zip(here.tensors, state.tensors, strict=True):
        wanted.copy_(found)
    before = [tensor.clone() for tensor in here.tensors]
    assert use(keeper) == use(StateKeeper(here))
    assert all(torch.equal(found, wanted) for found, wanted in zip(state.tensors, here.tensors, strict=True))
    assert not all(torch.equal(found, wanted) for found, wanted in zip(before, here.tensors, strict=True))


def test_what_is_dropped_behind_the_end_is_nobodys(remote: tuple[RemoteKeeper, DeviceState]) -> None:
    keeper, _ = remote
    keeper.make_room(1, None)
    keeper.room_for(Point(1))
    keeper._line.end()
    keeper.drop(Point(1))
    keeper.drop_parked(1)
    assert keeper.free_points == 1


def test_a_call_that_this_stage_has_not_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    Line(ours, calls.ANSWERS).send(calls.ChunkEnds())
    with pytest.raises(EngineError, match="ChunkEnds is no call to a stage"):
        serve_part(Line(theirs, calls.CALLS), ServedPart((), StateKeeper(new_state()), {}))
    ours.close()
    with pytest.raises(LineLost):
        serve_part(Line(theirs, calls.CALLS), ServedPart((), StateKeeper(new_state()), {}))
