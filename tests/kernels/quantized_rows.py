"""Quantized activations held against the definition, for tests of kernels that write them. Knows no kernel."""

import torch

from strata.kernels.expert_rows.reference import quantize_rows
from strata.kernels.packed_rows.rows_out import Activations


def assert_quantized(made: Activations, plain: torch.Tensor, used: list[int]) -> None:
    """`made` holds the rows `used` of plain [rows, columns], quantized as defined, bit for bit."""
    rows, blocks = plain.shape[0], plain.shape[1] // 32
    steps, wanted = (made.row_step, made.block_step), quantize_rows(plain[used].cpu())
    words = made.values.cpu().as_strided((rows, blocks, 4), (*(4 * step for step in steps), 1))[used].contiguous()
    q = words.view(torch.int8).reshape(-1, blocks, 4, 2, 4).transpose(2, 3).reshape(-1, blocks, 32)
    assert torch.equal(q.float(), wanted.q), "integers"
    records = made.records.cpu().as_strided((rows, blocks), steps)[used].contiguous()
    assert torch.equal(records.view(torch.int32).reshape(-1, blocks, 2)[..., 0], wanted.d.view(torch.int32)), "scales"
    halves = records.view(torch.int16).reshape(-1, blocks, 4)[..., 2:]
    assert torch.equal(halves.float(), wanted.q.reshape(-1, blocks, 2, 16).sum(dim=-1)), "sums of the half blocks"
