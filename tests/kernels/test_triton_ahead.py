"""Gate's and up's programs ask for their own weights and for down's, each byte once, no other: `make interpreter`."""

import pytest
import torch

from strata.kernels.expert_rows.buffers import ExpertBuffers
from strata.kernels.launch_shapes import listed_launch
from strata.quant.layout import Array, BlobLayout
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.joined_cases import KIND, filled, room_on
from tests.kernels.random_matrices import random_experts, random_rows

pytestmark = needs_interpreter

CPU = torch.device("cpu")
CHOICES = torch.tensor([[0, 1], [2, 1]])  # the second expert has two rows and stands between the others
LAYOUT = BlobLayout(*(KIND["q4_0"].layout(96, 64),) * 2, KIND["q8_0"].layout(64, 96))


def asked_for(monkeypatch: pytest.MonkeyPatch, rows: int, ahead: int) -> dict[tuple[int, int], list[int]]:
    """(seat, matrix) -> the places of 16 bytes in a blob, of codes and scales, that are asked for, rising."""
    from strata.kernels import dependent
    from strata.kernels.expert_rows import ahead as asking
    from strata.kernels.expert_rows import gate_up_hidden
    from strata.kernels.expert_rows.work import ExpertWork
    from strata.kernels.packed_rows import prefetch

    asked: list[int] = []

    def note(address: object, size: object) -> None:
        first, length = (int(value.handle.data.item()) for value in (address, size))  # type: ignore[attr-defined]
        asked.extend(range(first, first + length, 16))

    launch = listed_launch(rows, 1, 1, prefetches=True, ahead=ahead)
    with monkeypatch.context() as patch:
        patch.setattr(dependent, "HAS_DEPENDENT_LAUNCHES", True)
        own, last = prefetch.prefetch_constants(LAYOUT.gate, launch), asking.ahead_of(launch)
    monkeypatch.setattr(gate_up_hidden, "prefetch_constants", lambda layout, launch: own)
    monkeypatch.setattr(gate_up_hidden, "ahead_of", lambda launch: last)
    monkeypatch.setattr(asking, "prefetch_to_l2", note)
    monkeypatch.setattr(prefetch, "prefetch_to_l2", note)
    blobs = random_experts(1, LAYOUT, 3).blobs
    buffers = ExpertBuffers(torch.empty(4, 192), room_on(CPU, [LAYOUT.down], 4), torch.empty(2, 2, 64))
    x = filled(random_rows(3, 2, 64), room_on(CPU, [LAYOUT.gate], 2))
    gate_up_hidden.gate_up_hidden_into(blobs, ExpertWork.from_choices(CHOICES), x, buffers, None, launch)
    places: dict[tuple[int, int], list[int]] = {}
    for at in sorted(address - blobs.memory.data_ptr() for address in asked):
        seat, inside = divmod(at, blobs.stride)
        matrix = next((number for number in range(3) if inside in whole(number)), -1)
        places.setdefault((seat, matrix), []).append(inside)
    return places


def whole(matrix: int) -> list[int]:
    """All of a matrix's codes and scales, in steps of 16 bytes."""
    arrays = [LAYOUT.places()[matrix][array] for array in (Array.CODES, Array.SCALES)]
    return sorted(at for place in arrays for at in range(place.offset, place.offset + place.size, 16))


def test_one_row_asks_for_all_of_its_own_weights_and_for_downs_of_the_last_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = asked_for(monkeypatch, rows=1, ahead=3)
    own = {(seat, matrix): whole(matrix) for seat in range(3) for matrix in (0, 1)}
    assert found == own | {(seat, 2): whole(2) for seat in (1, 2)}


def test_among_several_rows_only_experts_of_several_ask_for_their_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked_for(monkeypatch, rows=2, ahead=1)
    assert found == {(1, 0): whole(0), (1, 1): whole(1), (2, 2): whole(2)}
