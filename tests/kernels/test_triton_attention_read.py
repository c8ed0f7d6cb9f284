"""Triton's attention of a read in its interpreter: float64's rows, right choices, and its own bits in every cut."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from strata.kernels.attention_read import AttentionReadWork
from strata.kernels.attention_read.arguments import GROUP_BLOCKS
from strata.kernels.attention_rows import AttentionRowsShape, reference
from strata.models.device.reading.room import ReadRoom
from strata.quant.cell_codes import CellKind
from tests.kernels.attention_cases import GATED, INDEXED, PLAIN, random_window
from tests.kernels.attention_read_checks import (
    HALF,
    SELECTIONS,
    SLOT,
    UNTOUCHED,
    Road,
    assert_selected,
    broken_work,
    check_choices,
    check_cuts,
    check_needle,
    check_values,
    exact_scores,
    greatest_scores,
    read_case,
    run_read,
    scores_to_select,
)
from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter

CELLS = 256
LARGE = replace(INDEXED, query_heads=6, kv_heads=2, head_dim=64, has_output_gate=False)


def kernels() -> Road:
    """Windows' definition of the heads, then the kernels, of which a program selects from few groups at a time."""
    from strata.kernels.attention_read import triton
    from strata.kernels.attention_read.launches import AttentionReadLaunch, ScoreLaunch, SelectLaunch

    launch = AttentionReadLaunch(score=ScoreLaunch(rows=16, blocks=32), select=SelectLaunch(few=32, many=32))
    return Road(
        reference.attention_prepare,
        partial(triton.read_choose, launch=launch),
        partial(triton.read_attend, launch=launch),
    )


@pytest.mark.parametrize(("shape", "position", "rows"), [(PLAIN, 0, 70), (GATED, 100, 70), (GATED, 63, 2)])
def test_dense_rows_are_those_of_float64_and_cuts_change_no_bit(
    shape: AttentionRowsShape, position: int, rows: int
) -> None:
    case = read_case(shape, position, rows, CELLS)
    ends = [*range(64 - position % 64, rows, 64), rows]
    check_values(check_cuts(kernels(), case, position, ends), case, position, list(range(rows)))


@pytest.mark.parametrize(("shape", "position", "rows"), [(INDEXED, 62, 9), (LARGE, 190, 4)])
def test_rows_that_choose_are_those_of_float64_and_cuts_change_no_bit(
    shape: AttentionRowsShape, position: int, rows: int
) -> None:
    """From dense rows to rows that choose, at 67; blocks that are completed by keys of two pieces."""
    case = read_case(shape, position, rows, CELLS)
    found = check_cuts(kernels(), case, position, [2, rows], most_scored=3)
    check_values(found, case, position, list(range(rows)))
    assert check_choices(found, position, shape, list(range(rows))) == 0


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.Q4])
def test_every_kind_of_cells_is_read_as_it_decodes(kind: CellKind) -> None:
    case = read_case(INDEXED, 130, 5, CELLS, kind)
    check_values(check_cuts(kernels(), case, 130, [2, 5]), case, 130, list(range(5)))


@pytest.mark.parametrize("kind", [CellKind.F32, CellKind.INT8, CellKind.K8V4, CellKind.Q4])
def test_cells_are_decoded_to_the_twins_bits(kind: CellKind) -> None:
    """Up to the last row's and no further, of heads of one group and less, of four groups."""
    from strata.kernels.attention_read.decoding import HEADS_AT_ONCE
    from strata.kernels.attention_read.reference import multiplied
    from strata.kernels.attention_read.triton import multiplied_cells

    for head_dim in (32, 64, 256):
        shape = replace(PLAIN, head_dim=head_dim)
        end = HEADS_AT_ONCE // shape.kv_heads + 1  # a second program decodes its first heads alone
        cells = random_window(shape, [(SLOT, end - 1, 1)], end + 3, half=4, kind=kind).cells
        work = AttentionReadWork.empty(1, shape, end + 3, kind, "cpu")
        found = multiplied_cells(cells, SLOT, end, work)
        for part, code, side in zip(found, (kind.keys, kind.values), (cells.keys, cells.values), strict=True):
            wanted = multiplied(code, side[SLOT, :end], shape.head_dim)
            assert torch.equal(part[:end].view(torch.int16), wanted.view(torch.int16))
            assert not part[end:].any(), "cells beyond the read were written"


@pytest.mark.parametrize("values", SELECTIONS)
def test_the_best_blocks_are_selected_exactly(values: str) -> None:
    """Among all groups, among the best of few, of many, and of more than are held."""
    from strata.kernels.attention_read.select import select_kernel

    for blocks, few, many in ((100, 64, 64), (110, 64, 64), (290, 64, 64), (290, 32, 64), (290, 16, 32)):
        complete = [blocks - 1, blocks]
        scores = scores_to_select(values, 2, 384)
        groups, chosen = (torch.full((3, 13), UNTOUCHED, dtype=torch.int32) for _ in range(2))
        select_kernel[(2,)](
            scores, greatest_scores(scores, complete), groups, chosen, 384, 4 * blocks - 2,
            RATIO=4, TOP=13, PADDED=16, GROUP=GROUP_BLOCKS, FEW=few, MANY=many, IS_ONE_CHUNK=many >= 48,
        )  # fmt: skip
        assert bool((chosen[2] == UNTOUCHED).all()) and bool((groups[2] == UNTOUCHED).all()), "written beyond"
        assert_selected(values, scores, chosen[:2], complete)


def test_scores_are_nearly_those_of_float32() -> None:
    """Of all rows that choose and all blocks that are complete for them, and the greatest of each group."""
    case = read_case(INDEXED, 100, 7, CELLS)
    work, road = broken_work(7, INDEXED, case.cells, 64), kernels()
    road.prepare(case.projected, case.rows, case.rotation, case.cells, case.layer, work)
    road.choose(100, SLOT, case.cells, INDEXED, work)
    assert work.choice is not None and work.index_query is not None and case.cells.pooled is not None
    assert INDEXED.indexer is not None
    for row in range(7):
        complete = (100 + row + 1) // 4
        wanted = exact_scores(work.index_query[row], case.cells.pooled[SLOT, :complete], INDEXED.indexer)
        found = work.choice.scores[row].double()
        assert float((found[:complete] - wanted).abs().max() / wanted.max()) < 2**-16
        greatest = greatest_scores(work.choice.scores[row : row + 1, :32], [complete])[0]
        assert torch.equal(work.choice.greatest[row, :4], greatest)
        assert bool((found[complete:32] == 0).all()) and bool(found[32:].isnan().all())


def test_parts_are_made_of_any_number_of_values() -> None:
    from strata.kernels.attention_read.scores import VALUES_AT_ONCE
    from strata.kernels.attention_read.triton import make_parts

    values = torch.randn(VALUES_AT_ONCE + 3, generator=torch.Generator().manual_seed(1))
    parts = torch.full((2, VALUES_AT_ONCE + 8), 7.0, dtype=HALF)
    make_parts(values, parts)
    torch.testing.assert_close(parts[:, : len(values)].double().sum(dim=0), values.double(), rtol=2**-16, atol=0)
    assert bool((parts[:, len(values) :] == 7).all())


def test_the_tile_of_a_dense_row_changes_none_of_its_bits() -> None:
    from strata.kernels.attention_read.dense import dense_kernel

    query, keys, values = (torch.randn(40, heads, 32).to(HALF) for heads in (4, 2, 2))
    found = []
    for tile in (16, 32, 64):
        out = torch.full((41, 4, 32), 7.0, dtype=HALF)
        dense_kernel[(4, -(-20 // tile))](
            query, keys, values, query, 0, out, 20, 20, QUERY_HEADS=4, KV_HEADS=2, GROUP=2, DIM=32, IS_GATED=False,
            ROWS=tile, CELLS=16, STAGES=1,
        )  # fmt: skip
        assert bool((out[20:] == 7).all()), "rows beyond the read were written"
        found.append(out[:20])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_rows_that_choose_leave_dense_rows_alone() -> None:
    from strata.kernels.attention_read.gathered import gathered_kernel

    query, keys, values = (torch.randn(12, 2, 32).to(HALF) for _ in range(3))
    out, chosen = torch.full((12, 2, 32), 7.0, dtype=HALF), torch.tensor([[0, 1]] * 12, dtype=torch.int32)
    gathered_kernel[(1, 2)](
        query, keys, values, chosen, query, 0, out, 11, 0, QUERY_HEADS=2, KV_HEADS=2, GROUP=1, PADDED=16, DIM=32,
        RATIO=4, TOP=2, IS_GATED=False, CELLS=16, STAGES=1,
    )  # fmt: skip
    assert bool((out[:11] == 7).all())
    shares = torch.softmax(torch.einsum("hd,chd->hc", query[11].double(), keys[:8].double()), dim=-1)
    torch.testing.assert_close(
        out[11].double(), torch.einsum("hc,chd->hd", shares, values[:8].double()), rtol=0.02, atol=0.01
    )


def test_cells_that_a_row_does_not_see_change_none_of_its_bits() -> None:
    from tests.kernels.triton_attention_read_probes import step_kernel

    values, before = torch.randn(16, 16).to(HALF), (torch.randn(16), torch.rand(16) + 1, torch.randn(16, 16))
    scores = torch.randn(16, 16)
    scores[::2], scores[1::2, 5:] = float("-inf"), float("-inf")
    after = [part.clone() for part in before]
    step_kernel[(1,)](scores, values, *after)
    for found, left in zip(after, before, strict=True):
        assert torch.equal(found[::2], left[::2]) and not torch.equal(found[1::2], left[1::2])


def test_rows_are_the_twins() -> None:
    from strata.kernels.attention_read.reference import read_attend

    case, road = read_case(GATED, 20, 6, CELLS), kernels()
    found = run_read(road, case, 20, [6])
    wanted = run_read(replace(road, attend=read_attend), case, 20, [6])
    torch.testing.assert_close(found.out.float(), wanted.out.float(), rtol=2**-6, atol=2**-8)


def test_what_is_chosen_with_and_what_is_attended_to_share_memory() -> None:
    """In a room where one name is one memory; others' tests have tensors of their own."""
    case, road, room = read_case(INDEXED, 100, 6, CELLS), kernels(), ReadRoom(torch.device("cpu"))
    wanted = run_read(road, case, 100, [6])
    AttentionReadWork.make(6, INDEXED, CELLS, CellKind.F32, room.take)
    room.make()
    work = AttentionReadWork.make(6, INDEXED, CELLS, CellKind.F32, room.take)
    assert room.total_bytes < AttentionReadWork.empty(6, INDEXED, CELLS, CellKind.F32, "meta").bytes_used()
    out = torch.empty(6, INDEXED.query_width, dtype=HALF)
    road.prepare(case.projected, case.rows, case.rotation, case.cells, case.layer, work)
    road.choose(100, SLOT, case.cells, INDEXED, work)
    road.attend(case.projected, 100, SLOT, case.cells, INDEXED, work, out)
    assert torch.equal(out, wanted.out)


def test_a_hidden_block_is_chosen() -> None:
    check_needle(kernels(), INDEXED, 412, 5, 203)


def test_queries_are_rounded_by_the_windows_kernel() -> None:
    from strata.kernels.attention_rows.prepare import attention_prepare

    case = read_case(INDEXED, 65, 2, CELLS)
    wanted = AttentionReadWork.empty(2, INDEXED, CELLS, CellKind.F32, "cpu")
    found = AttentionReadWork.empty(2, INDEXED, CELLS, CellKind.F32, "cpu")
    for prepare, work in ((reference.attention_prepare, wanted), (attention_prepare, found)):
        prepare(case.projected, case.rows, case.rotation, case.cells, case.layer, work)
    torch.testing.assert_close(found.query, wanted.query, rtol=2**-7, atol=1e-6)
    assert bool((found.query == wanted.query).float().mean() > 0.95)
