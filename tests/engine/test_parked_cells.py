"""Slots of a stage that move to main memory and back, in every kind of state: not one bit differs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from strata.engine import parked_cells
from strata.engine.parked_cells import ParkedCells
from strata.engine.parked_room import ParkedRoom
from strata.engine.parked_slot import ParkedPlaces
from strata.engine.steps import ParkingSpace
from strata.models.device.sizes import StateSizes
from strata.models.device.state import DeviceState
from strata.quant.cell_codes import CellKind
from tests.engine.chained_stages import chain_model
from tests.engine.paged_stages import LEAST, model_of
from tests.engine.parked_checks import check_cells, check_moves
from tests.engine.stages import CPU, TINY, stage_model

SIZES = StateSizes(
    delta_layers=2,
    value_heads=2,
    key_dim=3,
    value_dim=5,
    conv_rows=3,
    conv_width=7,
    attention_layers=2,
    kv_heads=1,
    head_dim=32,
    index_dim=8,
    ratio=4,
    ngram_layers=1,
    history_rows=3,
    tail_rows=2,
    stream_width=5,
)


def state_of(kind: CellKind, slots: int = 3, resident: int = 0) -> DeviceState:
    return DeviceState.empty(SIZES, slots, 600, kind, CPU, resident)


@pytest.mark.parametrize("name", TINY)
def test_a_model_whose_conversation_was_away_goes_on_with_its_bits(name: str) -> None:
    check_moves(stage_model(name, slots=3))


@pytest.mark.parametrize("kind", [CellKind.F32, CellKind.INT8, CellKind.K8V4, CellKind.Q4])
def test_in_every_kind_of_cells(kind: CellKind) -> None:
    check_moves(stage_model("llama", slots=2, kind=kind), rows=70)


def test_keys_and_values_in_main_memory_move_there() -> None:
    check_moves(model_of(LEAST, CellKind.K8V4), rows=100)


def test_a_chain_of_stages_parks_on_each() -> None:
    check_moves(chain_model("qwen4_exp", (1, 2)))


@pytest.mark.parametrize("resident", [0, 64])
@pytest.mark.parametrize("kind", list(CellKind))
def test_rows_of_any_number_in_parts_of_any_size(
    kind: CellKind, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(kind, resident=resident)
    monkeypatch.setattr(parked_cells, "PART_BYTES", 640)
    check_cells(ParkedCells(state, ParkedRoom(1 << 20, None)), state, [65, 1, 599])
    room = ParkedRoom(1 << 21, None)  # whose free bytes lie in gaps that are too small for a conversation
    taken = [room.take(1088) for _ in range(room.size // 1088)]
    for place in taken[::2]:
        assert place is not None
        place.release()
    check_cells(ParkedCells(state, room), state, [512, 64, 63])


def test_what_is_dropped_before_it_was_copied_is_copied_before_its_bytes_are_anothers() -> None:
    state = state_of(CellKind.F32)
    size = ParkedCells(state, ParkedRoom(0, None)).space.size(64)
    cells = ParkedCells(state, ParkedRoom(size, None))
    state.raw.copy_(torch.randn_like(state.raw))
    raw = state.raw.clone()
    cells.park(0, 7, 64)
    cells.bring(7, 1, 64, is_whole=True)
    cells.drop(7)
    cells.park(2, 8, 64)  # into the bytes that the one in front of it leaves
    cells.bring(8, 0, 64, is_whole=True)
    cells.finish()
    assert torch.equal(state.raw[:, 1, :64], raw[:, 0, :64])
    assert torch.equal(state.raw[:, 0, :64], raw[:, 2, :64])
    assert not cells.moves_on()


def test_the_space_of_a_conversation_is_what_its_tensors_take() -> None:
    for kind in CellKind:
        state = state_of(kind)
        space = ParkedCells(state, ParkedRoom(4096, None)).space
        assert space.limit == 4096
        assert space.fixed - 64 * 20 <= SIZES.fixed_bytes <= space.fixed
        assert space.size(512) - space.fixed == SIZES.cell_bytes(512, kind) == space.size(449) - space.fixed


class CountedStage:
    """See `ParkingStage`: counts what it is told."""

    def __init__(self, per_token: float) -> None:
        self.parking = ParkingSpace(0, 64, per_token)
        self.told: list[Any] = []

    def make_parking(self, size: int, pinning: Any) -> str | None:
        self.parking = replace(self.parking, limit=size)
        return "as it is"

    def park(self, slot: int, key: int, rows: int) -> None:
        self.told.append((slot, key, rows))

    def bring(self, key: int, slot: int, rows: int, *, is_whole: bool) -> None:
        self.told.append((key, slot, rows, is_whole))

    def drop_parked(self, key: int) -> None:
        self.told.append(key)

    def moves_on(self) -> bool:
        self.told.append("moves")
        return self.parking.per_token > 1


def test_stages_share_the_room_by_what_they_hold_and_all_park_or_none() -> None:
    stages = CountedStage(1.0), CountedStage(3.0)
    places = ParkedPlaces(stages)
    assert places.make_room(4000, 1000, None) == ("as it is",)
    assert [stage.parking.limit for stage in stages] == [1030, 2969]
    assert places.park(0, 600) == 1
    assert places.park(0, 600) is None
    assert [stage.told for stage in stages] == [[(0, 1, 600)]] * 2
    places.bring(1, 2, 300, is_whole=False)
    assert places.bytes_used(1) == 128 + 640 * 4
    places.drop(1)
    places.drop(1)
    assert places.park(1, 640) == 2
    assert [stage.told[1:] for stage in stages] == [[(1, 2, 300, False), 1, (1, 2, 640)]] * 2
    assert places.moves_on()
    assert all(stage.told[-1] == "moves" for stage in stages)
