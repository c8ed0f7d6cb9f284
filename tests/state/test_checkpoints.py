"""A state is what it was, or another one is, and the one that was left alone has not changed."""

from dataclasses import dataclass, field

import torch

from strata.state.checkpoints import checkpoint_bytes, fork, go_back, take_checkpoint
from strata.state.kv import GrowingRows


@dataclass
class Part:
    rows: GrowingRows
    matrix: torch.Tensor


@dataclass
class State:
    position: int
    parts: list[Part]
    extra: Part | None = None
    seen: list[int] = field(default_factory=list)


def new_state() -> State:
    return State(0, [Part(GrowingRows((2,), torch.float32), torch.zeros(3)) for _ in range(2)])


def advance(state: State, count: int, salt: float) -> None:
    for part in state.parts:
        part.rows.append(torch.full((count, 2), salt))
        part.matrix = part.matrix + salt  # replaced, not written
    state.position += count
    state.seen += [int(salt)] * count


def content(state: State) -> list[object]:
    rows = [part.rows.cells[: part.rows.count].tolist() for part in state.parts]
    return [state.position, list(state.seen), state.extra, rows, [part.matrix.tolist() for part in state.parts]]


def test_going_back_and_taking_the_same_way_again() -> None:
    state = new_state()
    advance(state, 5, 1.0)
    saved, before = take_checkpoint(state), content(state)
    advance(state, 600, 2.0)  # more than the capacity: the cells move
    after = content(state)
    assert go_back(state, saved) is state
    assert content(state) == before
    advance(state, 600, 2.0)
    assert content(state) == after


def test_a_fork_and_its_source_go_their_own_ways() -> None:
    state = new_state()
    advance(state, 5, 1.0)
    saved, at_fork = take_checkpoint(state), content(state)
    advance(state, 3, 2.0)
    before = content(state)
    other = fork(state, saved)
    assert content(other) == at_fork
    advance(other, 9, 7.0)
    assert content(state) == before
    advance(state, 2, 3.0)
    assert content(other)[0] == 14
    go_back(other, take_checkpoint(other))
    assert content(other)[1] == [1] * 5 + [7] * 9


def test_a_checkpoint_keeps_what_does_not_grow() -> None:
    state = new_state()
    advance(state, 1000, 1.0)
    assert checkpoint_bytes(take_checkpoint(state)) == 2 * 3 * 4
