"""silu(gate) * up on a GPU, quantized or as it is, as the down matrix reads it. Knows no matrix and no expert."""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.elementary import silu_times
from strata.kernels.packed_rows.activations import BLOCKS_A_PROGRAM, store_quantized
from strata.kernels.packed_rows.joined import both_forms
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.quant.layout import BLOCK_COLUMNS


@triton.jit
def store_hidden(
    gate_up, plain, q, records, row, block, width, row_step, block_step,
    TO_PLAIN: tl.constexpr, TO_QUANTIZED: tl.constexpr,
):  # fmt: skip
    """The blocks `block` [BLOCKS] of one row of silu(gate) * up, to row `row`; gate_up points to the row's gate."""
    element = block[:, None, None] * 32 + tl.arange(0, 2)[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    exists = element < width
    gate = tl.load(gate_up + element, mask=exists, other=0.0)
    h = silu_times(gate, tl.load(gate_up + width + element, mask=exists, other=0.0))
    if TO_PLAIN:
        tl.store(plain + row.to(tl.int64) * width + element, h, mask=exists)
    if TO_QUANTIZED:
        store_quantized(h, q, records, row, block, width // 32, row_step, block_step)


@triton.jit(
    do_not_specialize=["stride", "width", "row_step", "block_step"],
    do_not_specialize_on_alignment=["gate_up", "plain", "q", "records"],
)
def hidden_kernel(
    gate_up, stride, plain, q, records, row_step, block_step, width,
    TO_PLAIN: tl.constexpr, TO_QUANTIZED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Rows of gate_up that lie `stride` apart; grid (blocks of 32 columns / BLOCKS, rows)."""
    begin_dependent()
    row, block = tl.program_id(1), tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    store_hidden(
        gate_up + row.to(tl.int64) * stride, plain, q, records, row, block, width, row_step, block_step,
        TO_PLAIN, TO_QUANTIZED,
    )  # fmt: skip


def silu_times_into(gate_up: torch.Tensor, out: RowsOut) -> None:
    """See `strata.kernels.gated_mlp.silu_times_into`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    plain, quantized = both_forms(out)
    hidden_kernel[(triton.cdiv(width, BLOCK_COLUMNS * BLOCKS_A_PROGRAM), rows)](
        gate_up, gate_up.stride(0), plain, *quantized.arguments, width,
        TO_PLAIN=out.plain is not None, TO_QUANTIZED=out.quantized is not None,
        BLOCKS=BLOCKS_A_PROGRAM, num_warps=1, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
