"""One text gives one answer in qwen4_exp however it is cut, windowed, committed or put beside other slots."""

import random
from itertools import pairwise

import pytest
import torch

from strata.models.base import LogitRows, Segment
from tests.models.tiny_qwen4_exp import decode_one_by_one, read_in_pieces, tiny_model, tiny_text

TOLERANCE = 1e-4
ROWS = 300


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max())


@pytest.mark.parametrize("cuts", [[64], [128], [64, 128, 192, 256], [192, 256]])
def test_cuts_at_multiples_of_64_give_the_same_bits(cuts: list[int]) -> None:
    model, text = tiny_model(), tiny_text(ROWS)
    whole, state = read_in_pieces(model, text, [])
    pieces, cut_state = read_in_pieces(model, text, cuts)
    assert torch.equal(pieces, whole)
    after = tiny_text(5, 1)
    assert torch.equal(decode_one_by_one(model, cut_state, after), decode_one_by_one(model, state, after))


def test_a_read_that_goes_on_at_any_position_keeps_its_bits_when_cut_on_the_grid() -> None:
    model, text = tiny_model(), tiny_text(ROWS)
    whole, _ = read_in_pieces(model, text, [37])
    pieces, _ = read_in_pieces(model, text, [37, 64, 192])
    assert torch.equal(pieces, whole)


@pytest.mark.parametrize("seed", range(4))
def test_cuts_anywhere_agree(seed: int) -> None:
    model, text = tiny_model(), tiny_text(ROWS, seed)
    cuts = sorted(random.Random(seed).sample(range(1, ROWS), 9))
    assert difference(read_in_pieces(model, text, cuts)[0], read_in_pieces(model, text, [])[0]) < TOLERANCE


def test_token_by_token_agrees_by_reads_and_by_windows() -> None:
    model, text = tiny_model(), tiny_text(120)
    whole, _ = read_in_pieces(model, text, [])
    assert difference(read_in_pieces(model, text, list(range(1, 120)))[0], whole) < TOLERANCE
    assert difference(decode_one_by_one(model, model.new_state(), text), whole) < TOLERANCE


def test_float64_agrees_far_closer() -> None:
    model, text = tiny_model(torch.float64), tiny_text(120)
    whole, _ = read_in_pieces(model, text, [])
    assert difference(read_in_pieces(model, text, [1, 17, 63, 65])[0], whole) < 1e-11
    assert difference(decode_one_by_one(model, model.new_state(), text), whole) < 1e-11


@pytest.mark.parametrize("prefix", [3, 22, 130, 510])
def test_windows_with_random_acceptance_are_token_by_token(prefix: int) -> None:
    """Rejected rows leave no trace, and every row has the bits of one-by-one decoding."""
    model, text, rng = tiny_model(), tiny_text(prefix + 60, prefix), random.Random(prefix)
    _, state = read_in_pieces(model, text[:prefix], [])
    expected = decode_one_by_one(model, state.clone(), text[prefix:])
    position = prefix
    while position < len(text):
        right = rng.randrange(0, 5)  # rows of the text in the window; the rest are wrong drafts
        rows = text[position : position + max(1, right)]
        drafts = torch.cat((rows, tiny_text(rng.randrange(0, 4), position)))
        window = model.window([Segment(state, drafts)])
        accepted = len(rows) if right else 0
        found = window.output.logits[: len(rows)]
        assert torch.equal(found, expected[position - prefix : position - prefix + len(rows)])
        model.commit(window, [accepted])
        position += accepted
        assert state.position == position


def test_a_window_changes_no_state() -> None:
    model, text = tiny_model(), tiny_text(90)
    _, state = read_in_pieces(model, text, [])
    kept = state.clone()
    model.window([Segment(state, tiny_text(6, 1))])
    after = tiny_text(8, 2)
    assert torch.equal(decode_one_by_one(model, state, after), decode_one_by_one(model, kept, after))


def test_slots_in_one_window_have_the_bits_of_each_alone() -> None:
    model, counts = tiny_model(), (4, 1, 3, 7)
    states = [read_in_pieces(model, tiny_text(rows, rows), [])[1] for rows in (5, 27, 64, 515)]
    alone = [
        model.window([Segment(state.clone(), tiny_text(count, count))]).output.logits
        for state, count in zip(states, counts, strict=True)
    ]
    segments = [Segment(state, tiny_text(count, count)) for state, count in zip(states, counts, strict=True)]
    window = model.window(segments)
    assert torch.equal(window.output.logits, torch.cat(alone))
    copies, accepted = [state.clone() for state in states], (2, 1, 0, 7)
    model.commit(window, accepted)
    for state, copy, segment, count in zip(states, copies, segments, accepted, strict=True):
        if count:
            decode_one_by_one(model, copy, segment.token_ids[:count])
        after = tiny_text(4, 3)
        assert torch.equal(decode_one_by_one(model, state, after), decode_one_by_one(model, copy, after))


def test_slots_in_one_read_have_the_bits_of_each_alone() -> None:
    model, lengths = tiny_model(), (3, 70, 128)
    segments = [Segment(model.new_state(), tiny_text(rows, rows)) for rows in lengths]
    together = model.read(segments, LogitRows.ALL).logits
    alone = [read_in_pieces(model, tiny_text(rows, rows), [])[0] for rows in lengths]
    assert torch.equal(together, torch.cat(alone))


def test_a_clone_goes_its_own_way() -> None:
    model = tiny_model()
    _, state = read_in_pieces(model, tiny_text(100), [])
    copy = state.clone()
    decode_one_by_one(model, copy, tiny_text(10, 1))
    after = tiny_text(6, 2)
    _, fresh = read_in_pieces(model, tiny_text(100), [])
    assert torch.equal(decode_one_by_one(model, state, after), decode_one_by_one(model, fresh, after))


def test_state_grows_in_chunks_and_says_how_large_it_is() -> None:
    model = tiny_model()
    state = model.new_state()
    sizes = [state.bytes_used()]
    for _ in range(5):
        model.read([Segment(state, tiny_text(256))], LogitRows.NONE)
        sizes.append(state.bytes_used())
    assert state.position == 5 * 256
    assert sizes[1] == sizes[2] > sizes[0]  # 512 cells hold both
    assert all(later >= earlier for earlier, later in pairwise(sizes))
    cells = 2 * 2 * 32 * 4 + 2 * 16 * 4  # two layers' keys, values and raw indexer keys of one row
    assert 5 * 256 * cells < sizes[-1] < 2 * 5 * 256 * cells
