"""The delta net's twin for windows is the model's block: rows of several slots, and commits of 0 .. all of them."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.delta_rows import DeltaRowsShape, DeltaRowsWork, SegmentLengths, commit_delta, delta_rows
from strata.kernels.delta_rows.arguments import DeltaState
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.models.blocks import gated_delta_net as net
from strata.models.blocks.rotary import Rotation
from strata.models.mixers.base import RowsInfo
from strata.models.mixers.delta_net import DeltaNetMixer, DeltaNetState
from tests.kernels.delta_cases import ANY, TINY, WIDER, DeltaCase, copy_of, random_case
from tests.kernels.delta_checks import CERTAIN, check_certain
from tests.kernels.window_cases import window_of

SEGMENTS = [(2, 3), (0, 1), (3, 0), (1, 2)]  # slot 3 has no rows; two rows of the bucket are unused
BUCKET, SLOTS, LAYERS = 8, 4, 2


def work_of(rows: int, shape: DeltaRowsShape = TINY) -> DeltaRowsWork:
    """The twin reads none of it."""
    return DeltaRowsWork.empty(rows, shape, "cpu")


def mixer_of(case: DeltaCase, layer: int) -> DeltaNetMixer:
    """The model's mixer whose input projection is the identity, so that rows may be given as projected."""
    shape, vectors = case.shape, case.vectors.layer(layer)
    sizes = (shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim, shape.conv_kernel, shape.eps)
    block = net.DeltaNetShape(*sizes, "sigmoid" if shape.gate_is_sigmoid else "silu")
    weights = net.DeltaNetWeights(
        torch.eye(shape.projected_width), vectors.conv, vectors.decay_rate, vectors.decay_bias, vectors.norm_scale,
        torch.eye(shape.value_width),
    )  # fmt: skip
    return DeltaNetMixer(weights, block)


def window_by_blocks(case: DeltaCase, layer: int, accepted: list[int]) -> tuple[torch.Tensor, dict[int, DeltaNetState]]:
    """Rows' results [rows in use, value_width], and the states after the commit by slot."""
    mixer, used = mixer_of(case, layer), [(slot, count) for slot, count in SEGMENTS if count]
    starts = [sum(count for _, count in used[:index]) for index in range(len(used))]
    bounds = tuple((start, start + count) for start, (_, count) in zip(starts, used, strict=True))
    whole = case.states.layer(layer)
    states = [DeltaNetState(whole.conv_tail[slot].clone(), whole.delta[slot].clone()) for slot, _ in used]
    empty = torch.empty(0)
    info = RowsInfo(empty, empty, Rotation(empty, empty), bounds)
    found, pending = mixer.window(case.projected[layer, : bounds[-1][1]], info, states)
    for index, count in enumerate(count for (_, rows), count in zip(SEGMENTS, accepted, strict=True) if rows):
        if count:
            mixer.commit(pending, index, states[index], count)
    return found, {slot: state for (slot, _), state in zip(used, states, strict=True)}


@pytest.mark.parametrize("shape", [TINY, WIDER], ids=["tiny", "wider"])
@pytest.mark.parametrize("accepted", [[0, 0, 0, 0], [1, 1, 5, 0], [2, 0, 0, 1], [3, 1, 0, 2]])
def test_window_and_commit_are_those_of_the_block(shape: DeltaRowsShape, accepted: list[int]) -> None:
    case = random_case(shape, LAYERS, SLOTS, BUCKET)
    rows, before = window_of(SEGMENTS, BUCKET), copy_of(case.states)
    wanted = [window_by_blocks(case, layer, accepted) for layer in range(LAYERS)]
    for layer in range(LAYERS):
        out = torch.full((BUCKET, shape.value_width), 7.0)
        state, vectors = case.states.layer(layer), case.vectors.layer(layer)
        work = work_of(BUCKET, shape)
        delta_rows(case.projected[layer], rows, ANY, state, vectors, shape, work, RowsOut(out, None))
        torch.testing.assert_close(out[:6], wanted[layer][0], rtol=1e-5, atol=1e-5)
        assert bool((out[6:] == 7.0).all()), "an unused row was written"
    assert torch.equal(case.states.delta, before.delta), "a window changed the state"
    commit_delta(case.states, case.projected, rows, ANY, torch.tensor(accepted).int(), case.vectors, shape)
    for layer in range(LAYERS):
        for slot, after in wanted[layer][1].items():
            torch.testing.assert_close(case.states.delta[layer, slot], after.delta, rtol=1e-5, atol=1e-6)
            assert torch.equal(case.states.conv_tail[layer, slot], after.conv_tail)
    unused = [3] + [slot for (slot, _), count in zip(SEGMENTS, accepted, strict=True) if count == 0]
    assert torch.equal(case.states.delta[:, unused], before.delta[:, unused])
    assert torch.equal(case.states.conv_tail[:, unused], before.conv_tail[:, unused])


def test_rows_one_by_one_have_the_bits_of_rows_together() -> None:
    case = random_case(TINY, 1, SLOTS, 3)
    together = torch.empty(3, TINY.value_width)
    state, vectors = case.states.layer(0), case.vectors.layer(0)
    whole, out = window_of([(1, 3)], 3), RowsOut(together, None)
    delta_rows(case.projected[0], whole, ANY, state, vectors, TINY, work_of(3), out)
    for row in range(3):
        alone, one = torch.empty(1, TINY.value_width), case.projected[:, row : row + 1].contiguous()
        rows = window_of([(1, 1)], 1)
        delta_rows(one[0], rows, ANY, state, vectors, TINY, work_of(1), RowsOut(alone, None))
        commit_delta(case.states, one, rows, ANY, torch.ones(1).int(), case.vectors, TINY)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("name", CERTAIN)
@pytest.mark.parametrize("shape", [TINY, WIDER], ids=["tiny", "wider"])
def test_certain_segments_leave_the_state_that_a_commit_replays(shape: DeltaRowsShape, name: str) -> None:
    check_certain(delta_rows, commit_delta, shape, CERTAIN[name])


def test_blocks_come_in_the_order_of_the_output_matrix() -> None:
    case, order = random_case(WIDER, 1, 1, 1), torch.tensor([1, 0]).int()
    plain, moved = torch.empty(2, 1, WIDER.value_width)
    state, vectors, work = case.states.layer(0), case.vectors.layer(0), work_of(1, WIDER)
    arguments = (case.projected[0], window_of([(0, 1)], 1), ANY, state, vectors, WIDER, work)
    delta_rows(*arguments, RowsOut(plain, None))
    delta_rows(*arguments, RowsOut(moved, None), order)
    assert torch.equal(moved, torch.cat((plain[:, 32:], plain[:, :32]), dim=1))


def test_what_does_not_fit_is_refused_by_name() -> None:
    case, rows = random_case(TINY, 1, 1, 1), window_of([(0, 1)], 1)
    state, vectors = case.states.layer(0), case.vectors.layer(0)
    out, work = RowsOut(torch.empty(1, TINY.value_width), None), work_of(1)
    with pytest.raises(ValueError, match=r"projected must be contiguous torch.float32 \[1, 200\], not .* \[1, 199\]"):
        delta_rows(case.projected[0, :, 1:], rows, ANY, state, vectors, TINY, work, out)
    with pytest.raises(ValueError, match=r"state.conv_tail must be .*, not contiguous"):
        gaps = DeltaState(state.delta, state.conv_tail.repeat(1, 1, 2)[..., ::2])
        delta_rows(case.projected[0], rows, ANY, gaps, vectors, TINY, work, out)
    with pytest.raises(ValueError, match=r"work.recalled must be .* \[1, 64\], not .* \[2, 64\]"):
        other = replace(work, recalled=torch.empty(2, TINY.value_width))
        delta_rows(case.projected[0], rows, ANY, state, vectors, TINY, other, out)
    with pytest.raises(ValueError, match=r"out.plain is missing: value heads of 16 columns"):
        delta_rows(case.projected[0], rows, ANY, state, vectors, TINY, work, RowsOut(None, None))
    with pytest.raises(ValueError, match=r"block_order moves whole heads of a multiple of 32, not 16"):
        delta_rows(case.projected[0], rows, ANY, state, vectors, TINY, work, out, torch.tensor([1, 0]).int())
    with pytest.raises(ValueError, match=r"key_dim must be a power of two from 8 to 256, not 24"):
        delta_rows(case.projected[0], rows, ANY, state, vectors, replace(TINY, key_dim=24), work, out)
    for lengths in (SegmentLengths(0), SegmentLengths(1, -1)):
        with pytest.raises(ValueError, match=r"longest must be at least 1 and .*certain at least 0, not .*certain="):
            delta_rows(case.projected[0], rows, lengths, state, vectors, TINY, work, out)
    with pytest.raises(ValueError, match=r"accepted must be contiguous torch.int32 \[1\]"):
        commit_delta(case.states, case.projected, rows, ANY, torch.ones(1), case.vectors, TINY)
