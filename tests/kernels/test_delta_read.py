"""The delta net's twin for reads is the windows' rule row by row, whatever the start, the end and the cuts."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.delta_read import DeltaReadWork, delta_read
from strata.kernels.delta_read.arguments import MOST_ELEMENTS
from strata.kernels.delta_rows import DeltaRowsShape
from tests.kernels.delta_cases import TINY, DeltaCase
from tests.kernels.delta_read_checks import (
    LENGTHS,
    POSITIONS,
    SIGMOID,
    SLOT,
    check_cuts,
    grid_cuts,
    read_case,
    relative_error,
    row_by_row,
    run_read,
    small_decays_behind_large,
)


@pytest.mark.parametrize("shape", [TINY, SIGMOID], ids=["tiny", "sigmoid"])
@pytest.mark.parametrize("rows", LENGTHS)
def test_reads_are_the_rule_row_by_row_and_cuts_change_no_bit(shape: DeltaRowsShape, rows: int) -> None:
    case = read_case(shape, rows)
    wanted, delta, tail = row_by_row(case)
    for position in POSITIONS:
        found = check_cuts(delta_read, case, position, grid_cuts(position, rows), 64)
        torch.testing.assert_close(found.out.double(), wanted, rtol=2**-8, atol=1e-5)
        assert relative_error(found.state.delta[SLOT], delta) < 1e-6
        assert torch.equal(found.state.conv_tail[SLOT].double(), tail)


def test_small_decays_behind_a_large_one_are_kept() -> None:
    case = small_decays_behind_large(TINY, 128)
    found = run_read(delta_read, case, 0, [128], DeltaReadWork.empty(64, TINY, "cpu"))
    assert relative_error(found.state.delta[SLOT], row_by_row(case)[1]) < 1e-6


def test_heads_come_in_the_order_of_the_output_matrix() -> None:
    case, order = read_case(SIGMOID, 65), torch.tensor([1, 0]).int()
    work = DeltaReadWork.empty(64, SIGMOID, "cpu")
    plain = run_read(delta_read, case, 3, [65], work).out
    moved = run_read(delta_read, case, 3, [65], work, order).out
    assert torch.equal(moved, torch.cat((plain[:, 32:], plain[:, :32]), dim=1))


def test_work_counts_its_bytes() -> None:
    work = DeltaReadWork.empty(128, TINY, "cpu")
    rows = 128 * (TINY.key_width * 8 + TINY.value_width * 4)
    chunks = 2 * (TINY.value_heads * (64 * 64 * 8 + 64 * 20) + TINY.value_width * TINY.key_dim * 4)
    assert work.bytes_used == rows + chunks


def refused(case: DeltaCase, message: str, shape: DeltaRowsShape = TINY, **changed: object) -> None:
    """A read with one argument changed raises ValueError."""
    rows = case.projected.shape[1]
    arguments = {
        "projected": case.projected[0], "position": 0, "slot": 0, "state": case.states.layer(0),
        "vectors": case.vectors.layer(0), "shape": shape, "work": DeltaReadWork.empty(64, TINY, "cpu"),
        "out": torch.empty(rows, TINY.value_width, dtype=torch.bfloat16),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        delta_read(**(arguments | changed))


def test_what_does_not_fit_is_refused_by_name() -> None:
    case = read_case(TINY, 2)
    rows, work = case.projected[0], DeltaReadWork.empty(64, TINY, "cpu")
    refused(case, r"projected must be float32 or bfloat16 \[rows, 200\] .* not torch.float16", projected=rows.half())
    refused(case, r"projected must be .* strides \[1, 2\]", projected=rows.t().contiguous().t())
    refused(case, rf"projected must have 1 to {MOST_ELEMENTS // 200} rows, not 0", projected=rows[:0])
    refused(case, r"position must be at least 0, not -1", position=-1)
    refused(case, r"slot must be one of 0 to 2, not 3", slot=3)
    refused(case, r"out must be contiguous torch.bfloat16 \[2, 64\], not torch.float32", out=torch.empty(2, 64))
    refused(case, r"key_dim of a read must be at least 16, not 8", replace(TINY, key_dim=8))
    refused(case, r"work.solved must be .*\[2, 1, 4, 64, 64\]", work=replace(work, solved=work.solved[:1]))
    odd = replace(work, queries=work.queries[:, 1:])
    refused(case, r"rows of work.queries must be a multiple of 64 up to .*, not 63", work=odd)
    refused(case, r"block_order moves whole heads of a multiple of 32, not 16", block_order=torch.tensor([1, 0]).int())
    with pytest.raises(ValueError, match=r"rows must be a multiple of 64 up to 8388544, not 100"):
        DeltaReadWork.empty(100, TINY, "cpu")
