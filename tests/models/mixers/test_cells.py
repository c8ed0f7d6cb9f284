"""Attention over stored cells is attention over what they hold, rotated or not; their bytes are the kind's."""

import pytest
import torch

from strata.models.blocks.attention import AttentionShape, attend_causal
from strata.models.mixers.cells import attend, new_cells
from strata.quant.cell_codes import CellKind, rotate
from strata.state.kv import GrowingCells


def heads_of(cells: GrowingCells) -> torch.Tensor:
    return rotate(cells[:]) if cells.code.is_rotated else cells[:].float()


@pytest.mark.parametrize("kind", CellKind)
@pytest.mark.parametrize("head_dim", [32, 128])
def test_rotated_cells_give_what_the_heads_that_they_hold_give(kind: CellKind, head_dim: int) -> None:
    keys, values = new_cells(AttentionShape(6, 2, head_dim, cells=kind), torch.float32)
    for cells in (keys, values):
        for part in torch.randn(700, 2, head_dim).split(300):
            cells.append(part)
    query, positions = torch.randn(3, 6, head_dim), torch.arange(697, 700)
    found = attend(query, keys, values, lambda q, k, v: attend_causal(q, k, v, positions, 700))
    expected = attend_causal(query.double(), heads_of(keys).double(), heads_of(values).double(), positions, 700)
    assert (found - expected).norm() <= 1e-6 * expected.norm()
    assert keys.bytes_used() + values.bytes_used() == 1024 * 2 * kind.head_bytes(head_dim)


def test_cells_as_computed_keep_the_type_they_were_computed_in() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        keys, _ = new_cells(AttentionShape(2, 1, 10), dtype)
        heads = torch.randn(4, 1, 10, dtype=dtype)
        keys.append(heads)
        assert torch.equal(keys[:4], heads)
