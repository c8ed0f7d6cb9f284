"""The gated delta net of a read on a GPU: four launches a pass over whole chunks, then the convolution's tail.

    inputs   rows and heads side by side     queries, keys, values
    solve    chunks and heads                what of a chunk needs no state
    rule     columns of states               chunk after chunk; the only one that has an order
    outputs  chunks and heads                what queries recall, norm and gate

Knows what is launched; knows no arithmetic.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton

from strata.kernels.delta_read.arguments import CHUNK, DeltaReadWork
from strata.kernels.delta_read.inputs import GATES_AT_ONCE, inputs_kernel, tail_kernel
from strata.kernels.delta_read.outputs import outputs_kernel
from strata.kernels.delta_read.rule import rule_kernel
from strata.kernels.delta_read.solve import solve_kernel
from strata.kernels.delta_rows.arguments import DeltaRowsShape, DeltaState, DeltaVectors

TAIL_COLUMNS = 512
STATE_VALUES = 8192  # of a program of the rule, at most
MATRIX_UNITS_OF_WARP_GROUPS = 9  # major compute capability: left sides from registers, three chunks in shared memory


@dataclass(frozen=True)
class DeltaReadLaunch:
    """How the launches are cut. Each gives its own bits, whatever the read's length and cuts."""

    rows: int = 32  # of a program of inputs; divides CHUNK
    warps: int = 8  # of that
    solve_warps: int = 4
    columns: int = 64  # of a state in a program of the rule, at most
    rule_warps: int = 4
    stages: int = 3  # of the rule: a chunk is computed while the next but one is on its way
    outputs_warps: int = 8


@cache
def launch_of(device: torch.device) -> DeltaReadLaunch:
    """The launch for a device: elsewhere than on Hopper narrower columns, of which registers hold all."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] != MATRIX_UNITS_OF_WARP_GROUPS:
        return DeltaReadLaunch(columns=32, rule_warps=8, stages=2)
    return DeltaReadLaunch()


def delta_read(
    projected: torch.Tensor,
    position: int,
    slot: int,
    state: DeltaState,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaReadWork,
    out: torch.Tensor,
    block_order: torch.Tensor | None,
    launch: DeltaReadLaunch | None = None,
) -> None:
    """See the package."""
    launch = launch or launch_of(projected.device)
    count, before = projected.shape[0], position % CHUNK
    delta, tail = state.delta[slot], state.conv_tail[slot]
    for first_row in range(-before, count, work.rows):
        rows = min(work.rows, triton.cdiv(count - first_row, CHUNK) * CHUNK)
        make_inputs(projected, first_row, rows, tail, vectors, shape, work, launch)
        solve_chunks(rows // CHUNK, shape, work, launch)
        run_rule(rows // CHUNK, delta, shape, work, launch)
        make_outputs(projected, first_row, rows, vectors, shape, work, out, block_order, launch)
    tail_kernel[(triton.cdiv(shape.conv_width, TAIL_COLUMNS),)](
        projected, tail, projected.stride(0), count,
        CONV_WIDTH=shape.conv_width, TAIL=shape.tail_rows, COLUMNS=TAIL_COLUMNS, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def make_inputs(
    projected: torch.Tensor,
    first_row: int,
    rows: int,
    tail: torch.Tensor,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaReadWork,
    launch: DeltaReadLaunch,
) -> None:
    """Queries, keys, values, gates of `rows` grid rows of which the first is row `first_row` of the read."""
    heads = 2 * shape.key_heads + shape.value_heads + triton.cdiv(shape.value_heads, GATES_AT_ONCE)
    inputs_kernel[(heads, rows // launch.rows)](
        projected, tail, vectors.conv, vectors.decay_rate, vectors.decay_bias, work.queries, work.keys, work.values,
        work.gates, projected.stride(0), work.keys.stride(0), work.gates.stride(0), first_row, projected.shape[0],
        **_sizes_of(shape), KERNEL=shape.conv_kernel, ROWS=launch.rows, num_warps=launch.warps, enable_fp_fusion=False,
    )  # fmt: skip


def solve_chunks(chunks: int, shape: DeltaRowsShape, work: DeltaReadWork, launch: DeltaReadLaunch) -> None:
    """What of a pass's chunks needs no state."""
    solve_kernel[(shape.value_heads, chunks)](
        work.queries, work.keys, work.gates, work.solved, work.scores,
        work.keys.stride(0), work.solved.stride(0), work.gates.stride(0),
        **_sizes_of(shape), num_warps=launch.solve_warps, enable_fp_fusion=False,
    )  # fmt: skip


def run_rule(
    chunks: int, delta: torch.Tensor, shape: DeltaRowsShape, work: DeltaReadWork, launch: DeltaReadLaunch
) -> None:
    """The chunks of a pass in order."""
    columns = min(launch.columns, shape.value_dim, STATE_VALUES // shape.key_dim)
    rule_kernel[(shape.value_width // columns,)](
        work.keys, work.values, work.gates, work.solved, delta, work.states, work.written,
        work.keys.stride(0), work.solved.stride(0), work.gates.stride(0), work.states.stride(0), chunks,
        **_sizes_of(shape), COLUMNS=columns, STAGES=launch.stages, num_warps=launch.rule_warps, enable_fp_fusion=False,
    )  # fmt: skip


def make_outputs(
    projected: torch.Tensor,
    first_row: int,
    rows: int,
    vectors: DeltaVectors,
    shape: DeltaRowsShape,
    work: DeltaReadWork,
    out: torch.Tensor,
    block_order: torch.Tensor | None,
    launch: DeltaReadLaunch,
) -> None:
    """What the rows of a pass recall, normed and gated."""
    has_order = block_order is not None
    outputs_kernel[(shape.value_heads, rows // CHUNK)](
        work.queries, work.scores, work.gates, work.states, work.written, projected, vectors.norm_scale, out,
        block_order if has_order else out,
        work.keys.stride(0), work.solved.stride(0), work.gates.stride(0), work.states.stride(0), projected.stride(0),
        first_row, projected.shape[0],
        **_sizes_of(shape), EPS=shape.eps, GATE_IS_SIGMOID=shape.gate_is_sigmoid, HAS_ORDER=has_order,
        num_warps=launch.outputs_warps, enable_fp_fusion=False,
    )  # fmt: skip


def _sizes_of(shape: DeltaRowsShape) -> dict[str, int]:
    return {
        "KEY_HEADS": shape.key_heads,
        "VALUE_HEADS": shape.value_heads,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
    }
