"""The twin of a read's attention gives float64's rows and the windows' choices, in every cut, and refuses the rest."""

from dataclasses import replace

import pytest
import torch

from strata.kernels.attention_read import AttentionReadWork, read_attend, read_choose
from strata.kernels.attention_read.arguments import MOST_SCORES, dense_rows
from strata.kernels.attention_read.launches import HOPPER, launch_of
from strata.kernels.attention_rows import AttentionRowsShape, attention_prepare
from strata.quant.cell_codes import CellKind
from tests.kernels.attention_cases import GATED, INDEXED, PLAIN, PUBLISHED
from tests.kernels.attention_read_checks import (
    HALF,
    SLOT,
    Road,
    check_choices,
    check_cuts,
    check_needle,
    check_values,
    read_case,
)

TWIN = Road(attention_prepare, read_choose, read_attend)
CELLS = 512


@pytest.mark.parametrize(
    ("shape", "position", "rows"), [(PLAIN, 0, 130), (GATED, 100, 70), (INDEXED, 0, 130), (INDEXED, 61, 200)]
)
def test_rows_are_those_of_float64_and_cuts_change_no_bit(shape: AttentionRowsShape, position: int, rows: int) -> None:
    case = read_case(shape, position, rows, CELLS)
    found = check_cuts(TWIN, case, position, [*range(64 - position % 64, rows, 64), rows])
    check_values(found, case, position, list(range(rows)))
    if shape.indexer is not None:
        assert check_choices(found, position, shape, list(range(rows))) == 0


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.K8V4, CellKind.Q4])
def test_every_kind_of_cells_is_read_as_it_decodes(kind: CellKind) -> None:
    case = read_case(INDEXED, 130, 70, CELLS, kind)
    check_values(check_cuts(TWIN, case, 130, [62, 70]), case, 130, list(range(70)))


def test_cells_of_bfloat16_need_no_room_for_rounded_ones() -> None:
    room = {kind: AttentionReadWork.empty(2, INDEXED, CELLS, kind, "meta") for kind in CellKind}
    assert [kind for kind, work in room.items() if work.keys is None] == [CellKind.BF16]
    assert [kind for kind, work in room.items() if work.values is None] == [CellKind.BF16]


@pytest.mark.parametrize("context", [300, 2000, 8192])
def test_a_hidden_block_is_always_chosen(context: int) -> None:
    for hidden in (3, context // 3 // 4 * 4 + 3, context - 77 + context % 4):
        check_needle(TWIN, INDEXED, context, 20, hidden // 4 * 4 + 3)


def test_memory_of_scores_does_not_grow_with_the_context() -> None:
    sizes = {}
    for cells in (4096, 32_768, 262_144):
        work = AttentionReadWork.empty(8192, PUBLISHED, cells, CellKind.F32, "meta")
        assert work.choice is not None and work.choice.scores.numel() <= MOST_SCORES
        sizes[cells] = work.choice.rows_at_once
    assert sizes == {4096: 2048, 32_768: 2048, 262_144: 512}
    short = AttentionReadWork.empty(70, PUBLISHED, 262_144, CellKind.F32, "meta")
    assert short.choice is not None and short.choice.rows_at_once == 128
    # query, index query and its parts, parts of block keys, scores, greatest, groups, chosen blocks; keys and values
    rows = 70 * (24 * 256 * 2 + 4 * 128 * 8 + 512 * 4)
    assert short.bytes_used() == rows + 65_536 * 128 * 4 + 128 * (65_536 + 8192 + 512) * 4 + 262_144 * 1024 * 2


def test_rows_see_every_cell_until_they_choose() -> None:
    assert [dense_rows(10, position, INDEXED) for position in (0, 60, 66, 67, 500)] == [10, 7, 1, 0, 0]
    assert dense_rows(10, 500, PLAIN) == 10


def test_wide_heads_of_an_indexer_are_scored_in_smaller_tiles() -> None:
    assert PUBLISHED.indexer is not None
    wide = replace(PUBLISHED, indexer=replace(PUBLISHED.indexer, head_dim=256))
    full, small = (launch_of(torch.device("cpu"), shape) for shape in (PUBLISHED, wide))
    assert full == HOPPER and (small.score.rows, small.score.blocks) == (64, 64)
    assert replace(small, score=full.score) == full


def test_narrow_heads_keep_a_step_more_of_every_cell_under_way() -> None:
    wide, narrow = (launch_of(torch.device("cpu"), replace(PLAIN, head_dim=dim)) for dim in (256, 128))
    assert (wide.dense.stages, narrow.dense.stages) == (2, 3)
    assert replace(narrow, dense=wide.dense) == wide


def test_what_does_not_fit_is_refused_by_name() -> None:
    case = read_case(INDEXED, 130, 4, CELLS)
    work = AttentionReadWork.empty(4, INDEXED, CELLS, CellKind.F32, "cpu")
    out = torch.empty(4, INDEXED.query_width, dtype=HALF)
    assert work.choice is not None

    def refused(message: str, position: int = 130, slot: int = SLOT, **changed: object) -> None:
        parts = {"shape": INDEXED, "work": work, "out": out, "cells": case.cells} | changed
        with pytest.raises(ValueError, match=message):
            read_choose(position, slot, parts["cells"], parts["shape"], parts["work"])  # type: ignore[arg-type]
            read_attend(case.projected, position, slot, *(parts[name] for name in ("cells", "shape", "work", "out")))  # type: ignore[arg-type]

    refused("slot must be one of 0 to 1, not 2", slot=2)
    refused("position must be from 0 to 508, where the last of 4 rows has a cell, not 509", position=509)
    refused("shape.indexer is None", shape=GATED)
    refused("work.choice is None", work=replace(work, choice=None))
    refused(r"work.keys is None; it must be torch.bfloat16 \[512, 1, 32\]", work=replace(work, keys=None))
    refused(r"out must be contiguous torch.bfloat16 \[4, 128\], not torch.float32", out=out.float())
    refused(r"work.query must be contiguous torch.bfloat16", work=replace(work, query=work.query.float()))
    narrow = replace(work.choice, scores=work.choice.scores[:, :64])
    refused("rows of work.choice.scores are a multiple of 128 from 128 on, not 64", work=replace(work, choice=narrow))
    few = replace(work.choice, groups=work.choice.groups[:1])
    refused(r"work.choice.groups must be contiguous torch.int32 \[64, 16\]", work=replace(work, choice=few))
