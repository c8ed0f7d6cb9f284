"""Reads of random delta nets in pieces, and what must hold of them. Knows no road: twin, interpreter and GPU are asked
the same."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from strata.kernels.delta_read import CHUNK, DeltaReadWork
from strata.kernels.delta_rows import DeltaRowsShape, DeltaVectors, reference
from strata.kernels.delta_rows.arguments import DeltaState
from tests.kernels.delta_cases import DeltaCase, copy_of, random_case

SLOTS, SLOT = 3, 1
LENGTHS = (1, 63, 64, 65, 130)
POSITIONS = (0, 1, 63, 64, 100)
GUARD = 5  # rows around what a read may touch: NaN where it reads, 7 where it writes
SIGMOID = DeltaRowsShape(key_heads=1, value_heads=2, key_dim=16, value_dim=32, conv_kernel=3, gate_is_sigmoid=True)


@dataclass(frozen=True)
class ReadResult:
    """What a read leaves."""

    out: torch.Tensor  # bfloat16 [rows, value_width]
    state: DeltaState  # of all slots


def read_case(shape: DeltaRowsShape, rows: int, device: torch.device | str = "cpu", seed: int = 0) -> DeltaCase:
    """One layer's read of `rows` rows."""
    return random_case(shape, 1, SLOTS, rows, device, seed)


def small_decays_behind_large(shape: DeltaRowsShape, rows: int) -> DeltaCase:
    """Every eighth row all but forgets what was; differences of float32 sums then lose 2e-4 of what the others keep."""
    case = read_case(shape, rows)
    a = case.projected[0, :, -shape.value_heads :]
    a[:] = -6.0
    a[::8] = 400.0
    case.vectors.decay_rate.fill_(-2.0)
    case.vectors.decay_bias.zero_()
    return case


def run_read(
    delta_read: Callable[..., None],
    case: DeltaCase,
    position: int,
    ends: list[int],
    work: DeltaReadWork,
    block_order: torch.Tensor | None = None,
) -> ReadResult:
    """The case's rows from `position` on, in pieces that end at `ends`; refuses a read that writes beyond its own."""
    states, projected = copy_of(case.states), case.projected[0]
    out = torch.empty(projected.shape[0], case.shape.value_width, dtype=torch.bfloat16, device=projected.device)
    for begin, end in zip([0, *ends], ends, strict=False):
        rows = torch.full((end - begin + 2 * GUARD, projected.shape[1] + 16), float("nan"), device=projected.device)
        rows = rows.to(projected.dtype)
        inside = rows[GUARD:-GUARD, : projected.shape[1]]
        inside.copy_(projected[begin:end])
        piece = torch.full((end - begin + 2 * GUARD, out.shape[1]), 7.0, dtype=torch.bfloat16, device=out.device)
        for part in (work.queries, work.keys, work.values, work.gates, work.solved, work.scores, work.states):
            part.fill_(float("nan"))
        of_layer = (states.layer(0), case.vectors.layer(0), case.shape, work, piece[GUARD:-GUARD], block_order)
        delta_read(inside, position + begin, SLOT, *of_layer)
        out[begin:end] = piece[GUARD:-GUARD]
        beside = torch.cat((piece[:GUARD], piece[-GUARD:]))
        assert bool((beside == 7).all()), "rows beside the read were written"
    others = [slot for slot in range(SLOTS) if slot != SLOT]
    assert torch.equal(states.delta[0, others], case.states.delta[0, others]), "another slot's state was written"
    assert torch.equal(states.conv_tail[0, others], case.states.conv_tail[0, others]), "another slot's tail was written"
    return ReadResult(out, states.layer(0))


def grid_cuts(position: int, rows: int) -> list[int]:
    """Where the grid of a read lies in its rows, and its end."""
    return [*range(CHUNK - position % CHUNK, rows, CHUNK), rows]


def check_cuts(
    delta_read: Callable[..., None], case: DeltaCase, position: int, ends: list[int], pass_rows: int
) -> ReadResult:
    """The read at once has the bits, rows and state, of its pieces and of more passes."""
    rows, device = case.projected.shape[1], case.projected.device
    whole_rows = (position % CHUNK + rows + CHUNK - 1) // CHUNK * CHUNK
    whole = run_read(delta_read, case, position, [rows], DeltaReadWork.empty(whole_rows, case.shape, device))
    parts = run_read(delta_read, case, position, ends, DeltaReadWork.empty(pass_rows, case.shape, device))
    assert torch.equal(whole.out.view(torch.int16), parts.out.view(torch.int16)), "rows have other bits"
    assert torch.equal(whole.state.delta.view(torch.int32), parts.state.delta.view(torch.int32)), "the state has"
    assert torch.equal(whole.state.conv_tail, parts.state.conv_tail), "the tail is another"
    return whole


def row_by_row(case: DeltaCase) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """By the windows' definition in float64: rows [rows, value_width], and the slot's state and tail behind them."""
    projected, vectors = case.projected[0].double(), _double(case.vectors.layer(0))
    delta = case.states.delta[0, SLOT].double()
    extended = torch.cat((case.states.conv_tail[0, SLOT].double(), projected[:, : case.shape.conv_width]))
    rows = []
    for step, row in enumerate(projected):
        rule = reference.rule_row(extended[step : step + case.shape.conv_kernel], row, vectors, case.shape)
        delta = reference.advance(delta, rule)
        rows.append(reference.finish((delta * rule.query.unsqueeze(-1)).sum(dim=-2), row, vectors, case.shape))
    return torch.stack(rows), delta, extended[projected.shape[0] :]


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The length of the difference over the length of what is wanted."""
    return float((found.double() - wanted).norm() / wanted.norm())


def _double(vectors: DeltaVectors) -> DeltaVectors:
    return DeltaVectors(
        vectors.conv.double(), vectors.decay_rate.double(), vectors.decay_bias.double(), vectors.norm_scale.double()
    )
