"""What a parked conversation must be when it is back: bit for bit what stayed. For tests and for tests/gpu."""

from collections.abc import Sequence

import torch

from strata.engine.parked_cells import ParkedCells
from strata.engine.parked_slot import ParkedSlot
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.models.base import LogitRows, Segment
from strata.models.device.state import DeviceState, SavedSlot
from strata.state.checkpoints import fork, go_back, take_checkpoint
from strata.state.moving import moves_on, park, unpark
from tests.random_text import text_of

ROOM = 8 << 20


def check_moves(model: StageModel, rows: int = 150) -> None:
    """A conversation gives its slot to another one, is copied, comes back into a slot, and goes back to a point.

    model: of two slots or more, all of them free.
    """
    if not model.slots.parked.space.limit:
        assert model.slots.parked.make_room(ROOM, model.stage.sizes.context, None) == ()
    staying, moving = model.new_state(), model.new_state()
    for state in (staying, moving):
        model.read([Segment(state, text_of(64, 1))])
    point = take_checkpoint(moving)
    for state in (staying, moving):
        model.read([Segment(state, text_of(rows, 2))])
        _window(model, state, 3)
    wanted = _saved(model, moving)
    parked = moved_out(model, moving)
    other = model.new_state()
    assert other.index == moving.index
    model.release(moved_out(model, _read(model, other, text_of(rows + 20, 4))))  # which writes over its rows, and goes
    model.release(model.new_state())

    copy = fork(parked, take_checkpoint(parked))
    finish(copy)
    assert_equal(_saved(model, copy), wanted)
    model.release(copy)
    back = unpark(parked)
    model.release(parked)
    finish(back)
    assert_equal(_saved(model, back), wanted)
    assert torch.equal(_window(model, back, 5), _window(model, staying, 5))

    parked = moved_out(model, back)
    assert isinstance(go_back(parked, point), ParkedSlot) and parked.position == 64
    back = unpark(parked)
    model.release(parked)
    finish(back)
    model.release(staying)
    again = model.new_state()
    model.read([Segment(again, text_of(64, 1))])
    assert_equal(_saved(model, back), _saved(model, again))
    for state in (back, again):
        model.release(state)
    assert model.slots.parked.park(0, 10**9) is None
    assert sum(map(model.slots.parked.bytes_used, range(100))) == 0


def moved_out(model: StageModel, state: StageSlot) -> ParkedSlot:
    """Parked, and its slot given back."""
    parked = park(state)
    assert isinstance(parked, ParkedSlot) and parked.bytes_used() > 0
    model.release(state)
    return parked


def finish(state: StageSlot) -> None:
    """All that is to be copied."""
    while moves_on(state):
        pass


def check_cells(cells: ParkedCells, state: DeviceState, rows: Sequence[int]) -> None:
    """Random slots of these rows, one after another into the room and back into the others' places."""
    fill(state)
    wanted = [state.save(slot, count) for slot, count in enumerate(rows)]
    for slot, count in enumerate(rows):
        cells.park(slot, slot, count)
    cells.finish()
    settle(state)
    for tensor in parts_of(state):
        tensor.zero_()
    for slot, count in enumerate(reversed(rows)):
        cells.bring(len(rows) - 1 - slot, slot, count, is_whole=True)
    cells.finish()
    for slot, (count, saved) in enumerate(zip(reversed(rows), reversed(wanted), strict=True)):
        assert_equal(state.save(slot, count), saved)
    for key in range(len(rows)):
        cells.drop(key)


def parts_of(state: DeviceState) -> Sequence[torch.Tensor]:
    """All that slots hold, wherever it lies."""
    heads = (*state.keys.tensors, *state.values.tensors)
    return (state.delta, state.conv_tail, state.history, state.ngram_tail, state.raw, state.pooled, *heads)


def fill(state: DeviceState) -> None:
    """Every slot with numbers of chance."""
    for tensor in parts_of(state):
        if tensor.is_floating_point():
            tensor.uniform_(-1, 1)
        else:
            tensor.random_(0, 100)


def settle(state: DeviceState) -> None:
    """Until main memory holds what was launched."""
    if state.pools is not None:
        state.pools.settle()


def assert_equal(found: SavedSlot, wanted: SavedSlot) -> None:
    """The same rows with the same bits."""
    assert found.rows == wanted.rows
    for one, other in zip(found.tensors, wanted.tensors, strict=True):
        assert torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8)), "other bits"


def _read(model: StageModel, state: StageSlot, text: torch.Tensor) -> StageSlot:
    finish(state)
    model.read([Segment(state, text)], LogitRows.LAST)
    return state


def _window(model: StageModel, state: StageSlot, salt: int) -> torch.Tensor:
    window = model.window([Segment(state, text_of(2, salt))])
    model.commit(window, [1])
    return window.output.logits


def _saved(model: StageModel, state: StageSlot) -> SavedSlot:
    model.stage.wait()
    saved = [stage.state.save(state.index, state.position) for stage in model.stage.stages]
    return SavedSlot(state.position, [part for each in saved for part in each.tensors])
