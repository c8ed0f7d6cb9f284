"""What every family does alike, seen with a layer that only writes down what it is given."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from strata.errors import EngineError, RequestError
from strata.models.base import LogitRows, Segment
from strata.models.blocks.rotary import inverse_frequencies
from strata.models.mixers.base import RowsInfo
from strata.models.row_model import RowModel

VOCABULARY = 10


class SumState:
    """The sum of the rows so far."""

    def __init__(self, total: float = 0.0) -> None:
        self.total = total

    def bytes_used(self) -> int:
        return 8

    def clone(self) -> "SumState":
        return SumState(self.total)


class SumLayer:
    """Adds to every row the sum of all rows before it, itself included."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], tuple[tuple[int, int], ...]]] = []

    def new_state(self) -> SumState:
        return SumState()

    def read(self, x: torch.Tensor, rows: RowsInfo, state: SumState) -> torch.Tensor:
        output, pending = self.window(x, rows, [state])
        self.commit(pending, 0, state, len(x))
        return output

    def window(self, x: torch.Tensor, rows: RowsInfo, states: Sequence[SumState]) -> tuple[torch.Tensor, Any]:
        self.calls.append((rows.positions.tolist(), rows.bounds))
        sums = [x[start:stop].cumsum(0) for start, stop in rows.bounds]
        return torch.cat([x[a:b] + s + st.total for (a, b), s, st in zip(rows.bounds, sums, states, strict=True)]), sums

    def commit(self, pending: Any, slot: int, state: SumState, accepted_rows: int) -> None:
        state.total += float(pending[slot][accepted_rows - 1])


class SumModel(RowModel):
    config = None
    vocabulary_size, max_position = VOCABULARY, 200
    frequencies, dtype = inverse_frequencies(4, 1e4), torch.float64

    def __init__(self) -> None:
        self.layers = [SumLayer(), SumLayer()]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids.double()[:, None]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.repeat(1, VOCABULARY)


def test_a_read_passes_layer_by_layer_in_tiles_of_the_absolute_grid() -> None:
    model = SumModel()
    state = model.new_state()
    model.read([Segment(state, torch.ones(10, dtype=torch.int64))], LogitRows.NONE)
    model.layers[0].calls.clear()
    model.read([Segment(state, torch.ones(130, dtype=torch.int64))])
    tiles = [(list(range(a, b)), ((0, b - a),)) for a, b in ((10, 64), (64, 128), (128, 140))]
    assert model.layers[0].calls == tiles
    assert state.position == 140


def test_rows_of_several_slots_stand_one_after_another_in_a_window() -> None:
    model = SumModel()
    states = [model.new_state(), model.new_state()]
    model.read([Segment(states[1], torch.tensor([3, 4]))])
    model.layers[0].calls.clear()
    tokens = (torch.tensor([1, 2, 3]), torch.tensor([5]))
    window = model.window([Segment(state, ids) for state, ids in zip(states, tokens, strict=True)])
    assert model.layers[0].calls == [([0, 1, 2, 2], ((0, 3), (3, 4)))]
    model.commit(window, [2, 0])
    assert [state.position for state in states] == [2, 2]
    again = model.new_state()
    model.read([Segment(again, tokens[0][:2])])
    assert [part.total for part in states[0].layers] == [part.total for part in again.layers]


@pytest.mark.parametrize("accepted", [-1, 3])
def test_no_more_rows_are_accepted_than_there_are(accepted: int) -> None:
    model = SumModel()
    window = model.window([Segment(model.new_state(), torch.tensor([1, 2]))])
    with pytest.raises(ValueError, match=f"accepted {accepted} of 2 rows"):
        model.commit(window, [accepted])


@pytest.mark.parametrize(
    "tokens,words",
    [([], "at least one token"), ([1, 10], "token id 10"), ([-1], "token id -1"), ([0] * 201, "201 tokens.*200")],
)
def test_rows_that_cannot_be_read_are_refused(tokens: list[int], words: str) -> None:
    model = SumModel()
    segment = Segment(model.new_state(), torch.tensor(tokens, dtype=torch.int64))
    for call in (model.read, model.window):
        with pytest.raises(RequestError, match=words):
            call([segment])


@pytest.mark.parametrize("wanted", list(LogitRows))
def test_numbers_that_are_not_finite_are_an_error(wanted: LogitRows) -> None:
    model = SumModel()
    state = model.new_state()
    state.layers[0].total = float("inf")
    with pytest.raises(EngineError, match="the prompt are not finite"):
        model.read([Segment(state, torch.tensor([1]))], wanted)
