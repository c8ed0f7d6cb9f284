"""Packed matrices under one another and columns in an order of their own keep their values."""

import pytest
import torch

from strata.models.device.held import DeviceMatrices, join_neighbours, order_by_block, stack
from strata.models.fast.packing import PackedTensor, pack_values
from strata.quant.formats import by_name
from strata.quant.packed import PackedMatrix


def quantized(rows: int, columns: int, seed: int, kind: str = "Q8_0") -> PackedMatrix:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return by_name(kind).to_packed(by_name(kind).quantize(values), rows, columns)


@pytest.mark.parametrize("rows", [(16, 48, 7), (16, 5, 32), (3, 4)])
def test_stacked_matrices_keep_their_codes(rows: tuple[int, ...]) -> None:
    parts = [quantized(count, 64, seed) for seed, count in enumerate(rows)]
    whole = stack(parts)
    assert whole.layout.rows == sum(rows)
    assert torch.equal(whole.decode(), torch.cat([part.decode() for part in parts]))
    assert whole.codes.numel() == whole.layout.tiles * 16 * 64


def test_only_neighbours_of_one_layout_are_joined() -> None:
    parts = [quantized(16, 64, 0), quantized(16, 64, 1), quantized(16, 64, 2, "Q4_0"), quantized(16, 64, 3)]
    joined = join_neighbours(parts)
    assert [part.layout.rows for part in joined] == [32, 16, 16]
    assert torch.equal(torch.cat([part.decode() for part in joined]), torch.cat([part.decode() for part in parts]))


def test_an_order_of_whole_blocks_moves_the_input() -> None:
    matrix = quantized(16, 128, 1)
    blocks = torch.tensor([2, 0, 3, 1])
    columns = (blocks[:, None] * 32 + torch.arange(32)).flatten()
    parts, order = order_by_block(PackedTensor((matrix,), columns.int()))
    assert order is not None
    assert order.tolist() == [2, 0, 3, 1]
    x = torch.randn(3, 128)
    natural = torch.empty(16, 128)
    natural[:, columns] = matrix.decode()
    assert torch.allclose(DeviceMatrices(parts, order).times(x), x @ natural.t(), atol=0.2)


def test_an_order_that_cuts_blocks_is_undone() -> None:
    matrix = quantized(16, 64, 1)
    columns = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    parts, order = order_by_block(PackedTensor((matrix,), columns.int()))
    assert order is None
    natural = torch.empty(16, 64)
    natural[:, columns] = matrix.decode()
    assert torch.equal(parts[0].decode(), natural)


def test_float_values_of_one_code_are_joined() -> None:
    values = torch.randn(5, 32).bfloat16().float()
    assert torch.equal(stack([pack_values(values), pack_values(values)]).decode(), torch.cat((values, values)))
