"""A read in C++ has the bits of windows, wherever it is cut, agrees with torch, and may be stopped between layers."""

from typing import Any

import pytest
import torch

from strata.errors import EngineError
from strata.models.base import DraftRows, LogitRows, Segment
from strata.models.fast import windows
from strata.native import mixers
from tests.models.fast.test_windows import limit_of, state_after
from tests.models.fast.twins import FAMILIES, native_model, needs_library, packed_model, torch_model
from tests.models.tiny_qwen4_exp import decode_one_by_one, read_in_pieces
from tests.random_text import text_of

pytestmark = [needs_library, pytest.mark.parametrize("family", FAMILIES)]


def read_all(model: Any, text: torch.Tensor) -> torch.Tensor:
    return model.read([Segment(model.new_state(), text)], LogitRows.ALL).logits


def test_a_read_has_the_bits_of_windows_and_so_does_what_follows(family: str) -> None:
    model, text = native_model(family), text_of(200)
    read_state, window_state = model.new_state(), model.new_state()
    read = model.read([Segment(read_state, text[:180])], LogitRows.ALL)
    assert torch.equal(read.logits, decode_one_by_one(model, window_state, text[:180]))
    after = [decode_one_by_one(model, state, text[180:]) for state in (read_state, window_state)]
    assert torch.equal(*after)


@pytest.mark.parametrize("cuts", [[64], [1, 2, 130], [63, 64, 65]])
def test_a_read_may_be_cut_anywhere(family: str, cuts: list[int]) -> None:
    model, text = native_model(family), text_of(190)
    assert torch.equal(read_in_pieces(model, text, cuts)[0], read_all(model, text))


@pytest.mark.parametrize("rows", [64, 100])
def test_the_size_of_a_tile_changes_no_bit(family: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = native_model(family), text_of(330)
    expected = read_all(model, text)
    monkeypatch.setattr(windows, "READ_ROWS", rows)
    assert torch.equal(read_all(model, text), expected)
    state = model.new_state()
    last = model.read([Segment(state, text)])
    assert torch.equal(last.logits, expected[-1:])
    assert state.position == 330
    assert model.read([Segment(state, text_of(3))], LogitRows.NONE).logits.shape[0] == 0


def test_threads_change_no_bit(family: str) -> None:
    text = text_of(min(limit_of(family), 600))
    expected = read_all(native_model(family), text)
    for threads in (2, 3):
        assert torch.equal(read_all(native_model(family, threads), text), expected)


@pytest.mark.parametrize("rows", [5, 200, 1100])
def test_reads_agree_with_torch_and_with_torch_over_the_same_packed_weights(family: str, rows: int) -> None:
    text = text_of(min(rows, limit_of(family)))
    found = read_all(native_model(family), text)
    for twin in (torch_model(family), packed_model(family)):
        expected = read_all(twin, text)
        assert (found - expected).norm() <= 1e-4 * expected.norm()


def test_a_read_that_is_stopped_between_layers_leaves_the_state_as_it_was(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = native_model(family), text_of(120)
    state = state_after(model, text[:50])
    real = mixers.Model.read_layer

    def stop(self: Any, window: Any, layer: int, replaced: Any) -> None:
        if layer == 1:
            raise KeyboardInterrupt
        real(self, window, layer, replaced)

    monkeypatch.setattr(mixers.Model, "read_layer", stop)
    with pytest.raises(KeyboardInterrupt):
        model.read([Segment(state, text[50:])])
    monkeypatch.undo()
    assert state.position == 50
    assert torch.equal(model.read([Segment(state, text[50:])]).logits, read_all(model, text)[-1:])


def test_a_broken_state_is_an_error_and_not_an_answer(family: str) -> None:
    model = native_model(family)
    state = state_after(model, text_of(40))
    mixer = getattr(state.layers[0], "mixer", state.layers[0])
    broken = mixer.delta if hasattr(mixer, "delta") else mixer.values.codes.cells
    broken[3] = float("nan")
    with pytest.raises(EngineError, match="not finite"):
        model.read([Segment(state, text_of(2))])


def test_routing_of_a_read_is_observed(family: str) -> None:
    seen: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for name, model in (("native", native_model(family)), ("packed", packed_model(family))):
        calls = seen.setdefault(name, [])
        model.observe_routing(lambda layer, ids, calls=calls: calls.append((layer, ids)))
        model.read([Segment(model.new_state(), text_of(60))], LogitRows.NONE)
        model.observe_routing(None)
    assert [layer for layer, _ in seen["native"]] == [layer for layer, _ in seen["packed"]]
    same = [torch.equal(a.sort()[0], b.sort()[0]) for (_, a), (_, b) in zip(*seen.values(), strict=True)]
    assert all(same)


def test_a_draft_layer_reads_in_any_pieces(family: str) -> None:
    head, slow = native_model(family).draft_head, torch_model(family).draft_head
    if head is None:
        pytest.skip("the family has no draft layer")
    text = text_of(130)
    hidden = torch_model(family).read([Segment(torch_model(family).new_state(), text[:-1])], LogitRows.NONE).hidden
    answers = []
    for model, cuts in ((head, (129,)), (head, (40, 41, 129)), (slow, (129,))):
        state, start, logits = model.new_state(), 0, []
        for stop in cuts:
            rows = DraftRows(state, hidden[start:stop], text[start + 1 : stop + 1])
            logits.append(model.read(rows, LogitRows.ALL).logits)
            start = stop
        answers.append(torch.cat(logits))
    assert torch.equal(answers[0], answers[1])
    assert (answers[0] - answers[2]).norm() <= 1e-4 * answers[2].norm()
