"""Gate, up and h = silu(gate) * up of listed experts in one launch: a program makes a whole quantized block of h.

It holds the 32 outputs of gate and the 32 of up that the block needs, in the order of additions of packed_rows, so that
nothing between them goes through memory. For gate and up of one layout and integer codes. The shared expert's rows,
whose gate and up are there already, are the last programs.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from dataclasses import replace

import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.elementary import silu_times
from strata.kernels.expert_rows.buffers import ExpertBuffers, SharedExpert
from strata.kernels.expert_rows.triton import GATE, UP, launch_for, offsets_of
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.gated_mlp.triton import store_hidden
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.activations import BLOCKS_A_PROGRAM, store_quantized
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.joined import both_forms, rows_of
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.packed_rows.triton import integer_outputs
from strata.quant.layout import BLOCK_COLUMNS, Array, BlobLayout

TILES_OF_HIDDEN = 4  # of a program: two of gate, two of up


@triton.jit
def store_blocks(
    arrays, factor, activations, table, offset, hidden, sources, places, first, last, tile, row, columns, block,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Block `block` of h for the positions first .. first + ROWS - 1 of the list, those before `last`."""
    q, records, row_step, block_step = hidden
    at_rows = ()
    to_places = ()
    for r in tl.static_range(ROWS):
        at_rows += (tl.load(sources + tl.minimum(first + r, last - 1)),)
        to_places += (tl.load(places + tl.minimum(first + r, last - 1)),)
    results = integer_outputs(
        arrays, activations, table, offset, at_rows, tile, row, columns // 32,
        CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, UNROLL,
    )  # fmt: skip
    for r in tl.static_range(ROWS):
        if first + r < last:
            gate, up = tl.split(tl.trans(tl.reshape(results[r] * factor, (2, 32))))
            h = tl.reshape(silu_times(gate, up), (1, 2, 16))
            only = block + tl.zeros((1,), tl.int32)
            store_quantized(h, q, records, to_places[r], only, block + 1, row_step, block_step)


@triton.jit
def hidden_of_expert(
    blobs, stride, seats, starts, sources, places, activations, hidden, entry, block, columns,
    offsets, post_scale, to_up, table, offset,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr, BY_ADDRESS: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Block `block` of h of the expert in entry `entry`, for all of its places; see `expert_program`."""
    first, last = tl.load(starts + entry), tl.load(starts + entry + 1)
    seat = tl.load(seats + entry).to(tl.int64)
    if first < last:
        if BY_ADDRESS:
            blob = tl.multiple_of(tl.load(blobs + seat).to(tl.pointer_type(tl.uint8)), 64)
        else:
            blob = blobs + seat * stride
        output = tl.arange(0, 64)[None, :]  # 32 of gate, then 32 of up
        is_up = output // 32
        tile = block * 2 + tl.max_constancy(output // 16 % 2, [1, 16])
        row = tl.max_contiguous(output % 16, [1, 16])
        arrays = (
            (blob + (offsets[0] + is_up * to_up[0])).to(tl.pointer_type(tl.int32)),
            blob + (offsets[1] + is_up * to_up[1]),
            blob + (offsets[2] + is_up * to_up[2]),
            blob + (offsets[3] + is_up * to_up[3]),
            blob + (offsets[4] + is_up * to_up[4]),
        )
        factor_at = blob + (post_scale + tl.arange(0, 64) // 32 * 4)
        factor = tl.load(factor_at.to(tl.pointer_type(tl.float32)))
        while first < last:
            if ROWS > 1 and last - first > 1:
                store_blocks(
                    arrays, factor, activations, table, offset, hidden, sources, places, first, last,
                    tile, row, columns, block,
                    CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, ROWS, UNROLL,
                )  # fmt: skip
                first += ROWS
            else:
                store_blocks(
                    arrays, factor, activations, table, offset, hidden, sources, places, first, last,
                    tile, row, columns, block,
                    CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, 1, ALONE,
                )  # fmt: skip
                first += 1


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "hidden_row_step", "hidden_block_step", "columns", "blocks", "entries", "post_scale",
        "t0", "t1", "t2", "t3", "offset",
        "shared_stride", "shared_row_step", "shared_block_step", "shared_width",
    ],
    do_not_specialize_on_alignment=[
        "seats", "starts", "sources", "places", "x", "records", "hidden_q", "hidden_records",
        "shared_gate_up", "shared_plain", "shared_q", "shared_records",
    ],
)  # fmt: skip
def gate_up_hidden_kernel(
    blobs, stride, seats, starts, sources, places, x, records, row_step, block_step,
    hidden_q, hidden_records, hidden_row_step, hidden_block_step, columns, blocks, entries,
    codes, scales, super_scales, mins, super_mins, post_scale,
    codes_step, scales_step, super_scales_step, mins_step, super_mins_step, t0, t1, t2, t3, offset,
    shared_gate_up, shared_stride, shared_plain, shared_q, shared_records, shared_row_step, shared_block_step,
    shared_width,
    CODE: tl.constexpr, SCALE: tl.constexpr, MIN: tl.constexpr, IS_LINEAR: tl.constexpr, HAS_MIN: tl.constexpr,
    SUB_BLOCK: tl.constexpr, IS_FLOAT: tl.constexpr, BY_ADDRESS: tl.constexpr,
    ROWS: tl.constexpr, UNROLL: tl.constexpr, ALONE: tl.constexpr,
    SHARED_TO_PLAIN: tl.constexpr, SHARED_TO_QUANTIZED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Programs: `blocks` of h for each entry, then groups of BLOCKS blocks for each row of the shared expert."""
    tl.static_assert(not IS_FLOAT)
    begin_dependent()
    program = tl.program_id(0)
    if program < entries * blocks:
        hidden_of_expert(
            blobs, stride, seats, starts, sources, places, (x, records, row_step, block_step),
            (hidden_q, hidden_records, hidden_row_step, hidden_block_step),
            program // blocks, program % blocks, columns, (codes, scales, super_scales, mins, super_mins), post_scale,
            (codes_step, scales_step, super_scales_step, mins_step, super_mins_step), (t0, t1, t2, t3), offset,
            CODE, SCALE, MIN, IS_LINEAR, HAS_MIN, SUB_BLOCK, BY_ADDRESS, ROWS, UNROLL, ALONE,
        )  # fmt: skip
    else:
        program -= entries * blocks
        groups = tl.cdiv(shared_width, 32 * BLOCKS)
        shared_row = program // groups
        store_hidden(
            shared_gate_up + shared_row.to(tl.int64) * shared_stride, shared_plain, shared_q, shared_records,
            shared_row, program % groups * BLOCKS + tl.arange(0, BLOCKS), shared_width,
            shared_row_step, shared_block_step, SHARED_TO_PLAIN, SHARED_TO_QUANTIZED,
        )  # fmt: skip


def is_possible(layout: BlobLayout, launch: LaunchShape) -> bool:
    """Whether gate, up and h of such experts can be one launch."""
    has_float = layout.gate.code.is_float or layout.down.code.is_float
    return layout.gate == layout.up and not has_float and not launch.uses_matrix_units


def gate_up_hidden_into(
    blobs: ExpertBlobs,
    work: ExpertWork,
    x: RowsOut,
    buffers: ExpertBuffers,
    shared: SharedExpert | None,
    launch: LaunchShape | None = None,
) -> None:
    """buffers.hidden of every listed place and buffers.shared_hidden; `launch` is that of one tile."""
    gate, blocks, entries = blobs.layout.gate, blobs.layout.down.blocks, work.seats.numel()
    launch, steps = launch or launch_for(blobs, work, GATE), decode_steps(gate)
    launch = replace(launch, warps=TILES_OF_HIDDEN * launch.warps)
    assert buffers.hidden.quantized is not None  # of an integer code: checked by the caller
    shared_gate_up, shared_hidden, rows = buffers.gate_up, buffers.hidden, 0
    if shared is not None:
        assert buffers.shared_hidden is not None  # checked by the caller
        shared_gate_up, shared_hidden, rows = shared.gate_up, buffers.shared_hidden, shared.gate_up.shape[0]
    shared_plain, shared_quantized = both_forms(shared_hidden)
    shared_width = shared_gate_up.shape[1] // 2
    shared_programs = rows * triton.cdiv(shared_width, BLOCK_COLUMNS * BLOCKS_A_PROGRAM)
    places = blobs.layout.places()
    gate_up_hidden_kernel[(entries * blocks + shared_programs,)](
        blobs.memory if blobs.addresses is None else blobs.addresses, blobs.stride,
        work.seats, work.starts, work.rows, work.places,
        *rows_of(gate, x).arguments, *buffers.hidden.quantized.arguments, gate.columns, blocks, entries,
        *offsets_of(blobs.layout, GATE), *(places[UP][array].offset - places[GATE][array].offset for array in Array),
        *steps.table, steps.offset,
        shared_gate_up, shared_gate_up.stride(0), shared_plain, *shared_quantized.arguments, shared_width,
        **steps.constants(), BY_ADDRESS=blobs.addresses is not None,
        ROWS=launch.rows, UNROLL=launch.unroll, ALONE=launch.alone or launch.unroll,
        SHARED_TO_PLAIN=shared_hidden.plain is not None, SHARED_TO_QUANTIZED=shared_hidden.quantized is not None,
        BLOCKS=BLOCKS_A_PROGRAM, **launch.options, **dependent_options(),
    )  # fmt: skip
