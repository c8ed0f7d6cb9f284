"""Windows in C++ are the torch twin's within rounding, and their rows have the bits of one-by-one decoding."""

import random
from typing import Any

import pytest
import torch

from strata.errors import EngineError
from strata.models.base import DraftRows, LogitRows, Segment
from strata.models.fast.windows import FastWindow
from tests.models.fast.twins import FAMILIES, native_model, needs_library, torch_model
from tests.models.tiny_qwen4_exp import decode_one_by_one
from tests.random_text import text_of

pytestmark = [needs_library, pytest.mark.parametrize("family", FAMILIES)]

PREFIXES = (3, 27, 130, 515)  # of qwen4_exp, the indexer's budget is exceeded after 27 rows; keys are split at 512


def state_after(model: Any, text: torch.Tensor) -> Any:
    state = model.new_state()
    model.read([Segment(state, text)], LogitRows.NONE)
    return state


def limit_of(family: str) -> int:
    return 500 if family != "qwen4_exp" else 4000


@pytest.mark.parametrize("prefix", PREFIXES)
def test_logits_are_as_close_to_float64_as_those_of_torch(family: str, prefix: int) -> None:
    prefix = min(prefix, limit_of(family))
    text = text_of(prefix + 6)
    exact_model = torch_model(family, torch.float64)
    exact = decode_one_by_one(exact_model, state_after(exact_model, text[:prefix]), text[prefix:])
    errors = []
    for model in (native_model(family), torch_model(family)):
        found = decode_one_by_one(model, state_after(model, text[:prefix]), text[prefix:]).double()
        errors.append(float((found - exact).norm() / exact.norm()))
    native_error, torch_error = errors
    assert native_error <= 1e-5
    assert native_error <= 3 * torch_error


@pytest.mark.parametrize("prefix", PREFIXES)
def test_windows_with_random_acceptance_have_the_bits_of_one_by_one(family: str, prefix: int) -> None:
    """Rejected rows leave no trace; the commit of any prefix of a window is that of its rows one by one."""
    prefix = min(prefix, limit_of(family) - 60)
    model, text, rng = native_model(family), text_of(prefix + 40, prefix), random.Random(prefix)
    state = state_after(model, text[:prefix])
    expected = decode_one_by_one(model, state.clone(), text[prefix:])
    position = prefix
    while position < len(text):
        right = rng.randrange(0, 5)
        rows = text[position : position + max(1, right)]
        window = model.window([Segment(state, torch.cat((rows, text_of(rng.randrange(0, 4), position))))])
        assert isinstance(window.pending, FastWindow)
        accepted = len(rows) if right else 0
        found = window.output.logits[: len(rows)]
        assert torch.equal(found, expected[position - prefix : position - prefix + len(rows)])
        model.commit(window, [accepted])
        position += accepted
        assert state.position == position


def test_slots_in_one_window_have_the_bits_of_each_alone_on_any_number_of_threads(family: str) -> None:
    counts, lengths = (4, 1, 3, 7), (5, 27, 64, 130)
    answers = []
    for threads in (1, 2, 3):
        model = native_model(family, threads)
        states = [state_after(model, text_of(rows, rows)) for rows in lengths]
        segments = [Segment(state, text_of(count, count)) for state, count in zip(states, counts, strict=True)]
        alone = [model.window([Segment(each.state.clone(), each.token_ids)]).output.logits for each in segments]
        window = model.window(segments)
        assert torch.equal(window.output.logits, torch.cat(alone))
        copies, accepted = [state.clone() for state in states], (2, 1, 0, 7)
        model.commit(window, accepted)
        for state, copy, segment, count in zip(states, copies, segments, accepted, strict=True):
            if count:
                decode_one_by_one(model, copy, segment.token_ids[:count])
            after = text_of(4, 3)
            answers.append(decode_one_by_one(model, state, after))
            assert torch.equal(answers[-1], decode_one_by_one(model, copy, after))
    for one, two, three in zip(answers[:4], answers[4:8], answers[8:], strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_a_window_changes_no_state(family: str) -> None:
    model = native_model(family)
    state = state_after(model, text_of(90))
    kept = state.clone()
    first = model.window([Segment(state, text_of(6, 1))]).output.logits
    assert torch.equal(first, model.window([Segment(state, text_of(6, 1))]).output.logits)
    after = text_of(8, 2)
    assert torch.equal(decode_one_by_one(model, state, after), decode_one_by_one(model, kept, after))


def test_states_pass_from_one_twin_to_the_other(family: str) -> None:
    native, slow, text = native_model(family), torch_model(family), text_of(80)
    expected = decode_one_by_one(slow, slow.new_state(), text)
    state, logits = native.new_state(), []
    for row, token in enumerate(text.split(1)):
        model = (native, slow)[row // 3 % 2]
        window = model.window([Segment(state, token)])
        model.commit(window, [1])
        logits.append(window.output.logits)
    assert (torch.cat(logits) - expected).abs().max() <= 1e-4


def test_a_broken_state_is_an_error_and_not_an_answer(family: str) -> None:
    model = native_model(family)
    state = state_after(model, text_of(40))
    layer = state.layers[0]
    mixer = getattr(layer, "mixer", layer)
    broken = mixer.delta if hasattr(mixer, "delta") else mixer.values.codes.cells
    broken[3] = float("nan")
    with pytest.raises(EngineError, match="not finite"):
        model.window([Segment(state, text_of(2))])


def test_routing_is_observed_in_every_sparse_layer(family: str) -> None:
    seen: dict[str, list[tuple[int, torch.Tensor]]] = {"native": [], "torch": []}
    for name, model in (("native", native_model(family)), ("torch", torch_model(family))):
        model.observe_routing(lambda layer, ids, name=name: seen[name].append((layer, ids)))
        model.window([Segment(state_after(model, text_of(9)), text_of(3))])
        model.observe_routing(None)
    assert [layer for layer, _ in seen["native"]] == [layer for layer, _ in seen["torch"]]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(seen["native"], seen["torch"], strict=True))


def test_parts_tell_what_they_took(family: str) -> None:
    model = native_model(family)
    before = model.fast.part_seconds()
    model.window([Segment(model.new_state(), text_of(3))])
    after = model.fast.part_seconds()
    assert all(after[part] > before[part] for part in ("dense", "mixers", "head", "residuals"))


def test_draft_layers_agree(family: str) -> None:
    native, slow = native_model(family), torch_model(family)
    if slow.draft_head is None:
        pytest.skip("the family has no draft layer")
    text = text_of(46)
    hidden = slow.read([Segment(slow.new_state(), text[:-1])], LogitRows.NONE).hidden
    logits = []
    for head in (native.draft_head, slow.draft_head):
        state = head.new_state()
        head.read(DraftRows(state, hidden[:40], text[1:41]), LogitRows.NONE)
        found = [head.read(DraftRows(state, hidden[40:41], text[41:42])).logits]
        found.append(head.read(DraftRows(state, hidden[41:45], text[42:46]), LogitRows.ALL).logits)
        head.truncate(state, 43)
        assert state.position == 43
        found.append(head.read(DraftRows(state, hidden[43:44], text[44:45])).logits)
        assert head.read(DraftRows(state, hidden[44:45], text[45:46]), LogitRows.NONE).logits.shape[0] == 0
        logits.append(torch.cat(found))
    assert (logits[0] - logits[1]).abs().max() <= 1e-5
