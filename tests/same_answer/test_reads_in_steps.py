"""A read on the CPU, layer by layer: at once, in pieces, beside windows of another slot, gone on with from a point."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from strata.models.base import LogitRows, Segment
from strata.state.checkpoints import go_back, take_checkpoint
from tests.models.fast.twins import native_model, needs_library, torch_model
from tests.random_text import text_of

ROADS = (pytest.param(native_model, marks=needs_library, id="native"), pytest.param(torch_model, id="torch"))
TEXT = text_of(200)
OTHER = text_of(90)  # another slot's: its first rows are read, the others decoded
pytestmark = [
    pytest.mark.parametrize("road", ROADS),
    pytest.mark.parametrize("family", ["qwen4_exp", "qwen3_next", "qwen3_moe"]),
]
Between = Callable[[], object]


def read(model: Any, state: Any, rows: torch.Tensor, between: Between = lambda: None) -> torch.Tensor:
    """The logits of rows that become state; `between` is called between two layers."""
    reading = model.begin_read(Segment(state, rows), LogitRows.ALL)
    steps = 1
    while not reading.advance():
        steps += 1
        between()
    assert steps == len(model.layers)
    return reading.finish().logits


def what_follows(model: Any, state: Any) -> torch.Tensor:
    """Of a few windows behind what was read: every part of the state shows in it."""
    logits = []
    for token in (5, 9):
        window = model.window([Segment(state, torch.tensor([token]))])
        model.commit(window, [1])
        logits.append(window.output.logits)
    return torch.cat(logits)


def at_once(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    state = model.new_state()
    logits = model.read([Segment(state, TEXT)], LogitRows.ALL).logits
    return logits, what_follows(model, state)


def decoding(model: Any) -> Iterator[torch.Tensor]:
    """Windows of one row of a slot of its own, one after another."""
    state = model.new_state()
    model.read([Segment(state, OTHER[:40])])
    for token in OTHER[40:]:
        window = model.window([Segment(state, token[None])])
        model.commit(window, [1])
        yield window.output.logits


@pytest.mark.parametrize("cuts", [(), (64, 128, 192)])
def test_windows_between_two_layers_change_nobodys_bits(
    road: Callable[[str], Any], family: str, cuts: tuple[int, ...]
) -> None:
    model = road(family)
    alone = decoding(model)
    windows, expected = decoding(model), []
    state, logits = model.new_state(), []
    found = []
    for start, stop in zip((0, *cuts), (*cuts, len(TEXT)), strict=True):
        logits.append(read(model, state, TEXT[start:stop], lambda: found.append(next(windows))))
    expected = [next(alone) for _ in found]
    assert len(found) == (len(cuts) + 1) * (len(model.layers) - 1)
    assert torch.equal(torch.cat(found), torch.cat(expected))
    whole, following = at_once(model)
    assert torch.equal(torch.cat(logits), whole)
    assert torch.equal(what_follows(model, state), following)


def test_a_read_given_up_between_two_layers_is_gone_on_with_from_its_point(
    road: Callable[[str], Any], family: str
) -> None:
    model = road(family)
    state = model.new_state()
    first = read(model, state, TEXT[:128])
    point = take_checkpoint(state)
    for steps in range(1, len(model.layers)):
        reading = model.begin_read(Segment(state, text_of(70)))
        assert not any(reading.advance() for _ in range(steps))
        reading.cancel()
        state = go_back(state, point)
        assert state.position == 128
    rest = read(model, state, TEXT[128:])
    whole, following = at_once(model)
    assert torch.equal(torch.cat((first, rest)), whole)
    assert torch.equal(what_follows(model, state), following)
