"""A kernel that runs the selection of blocks alone. Needs Triton; knows no expected value."""

import torch
import triton
import triton.language as tl

from strata.kernels.attention_rows.select import select_best


@triton.jit
def select_kernel(scores, complete, chosen, blocks, TOP: tl.constexpr, CHUNK: tl.constexpr, IS_ONE_CHUNK: tl.constexpr):
    """scores [rows, blocks], complete [rows] -> chosen [rows, TOP]; a program a row."""
    row = tl.program_id(0)
    select_best(scores + row * blocks, chosen + row * TOP, tl.load(complete + row), TOP, CHUNK, IS_ONE_CHUNK)


def select_rows(scores: torch.Tensor, complete: torch.Tensor, chosen: torch.Tensor, chunk: int) -> None:
    """One launch, `chunk` scores at a time; complete int32 [rows]."""
    rows, blocks = scores.shape
    chunk = min(chunk, triton.next_power_of_2(blocks))
    select_kernel[(rows,)](
        scores, complete, chosen, blocks, TOP=chosen.shape[1], CHUNK=chunk, IS_ONE_CHUNK=blocks <= chunk, num_warps=16
    )
