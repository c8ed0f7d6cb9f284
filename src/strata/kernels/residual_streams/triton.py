"""Adding to residual streams and their norms on a GPU, in one launch. Knows no checks.

One program owns one stream of one row, from the addition to its quantized norm. At one row there are as many programs
as streams, so each has many warps, and everything it reads is asked for before anything is added.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment, var-annotated"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import allow_dependents, dependent_options, wait_for_predecessor
from strata.kernels.packed_rows.blocks_out import store_blocks
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.residual_streams.additions import Addition, ExpertRows, MixerRows, Values

MOST_CHUNK = 512  # columns that the warps of a program take at once, one a thread
LEAST_CHUNK = 32
REGISTERS = 128  # most of a thread: the compiler then asks for all ranks at once instead of saving registers
NOTHING, MIXER, EXPERTS, VALUES = (tl.constexpr(kind) for kind in range(4))


@triton.jit
def add_rank(total, weight, value):
    """fma(weight, value, total): one rank, as `expert_rows.reference.combine` adds it."""
    return tl.fma(tl.broadcast_to(weight, total.shape), value, total)


@triton.jit
def sum_of_squares(chunks):
    """The squares of a tuple of [blocks, 32]: chunk by chunk in every place, then over the places."""
    CHUNKS: tl.constexpr = len(chunks)
    squares = chunks[0] * chunks[0]
    for chunk in tl.static_range(1, CHUNKS):
        squares += chunks[chunk] * chunks[chunk]
    return tl.sum(tl.reshape(squares, (squares.shape[0] * 32,)), axis=0)


@triton.jit(do_not_specialize=["row_step", "block_step"], do_not_specialize_on_alignment=[
    "streams", "rows_added", "weights", "shared", "shared_weights", "strengths", "norm_scale", "plain", "q", "records",
])  # fmt: skip
def add_and_norm_kernel(
    streams, rows_added, weights, shared, shared_weights, strengths, norm_scale, eps,
    plain, q, records, row_step, block_step,
    KIND: tl.constexpr, RANKS: tl.constexpr, HAS_SHARED: tl.constexpr, HAS_SHARED_WEIGHTS: tl.constexpr,
    HAS_STRENGTHS: tl.constexpr, HAS_PLAIN: tl.constexpr, HAS_QUANTIZED: tl.constexpr,
    STREAMS: tl.constexpr, HIDDEN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """streams, plain [rows, STREAMS * HIDDEN]; grid (STREAMS, rows). One binary, one order of sums."""
    stream = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    CHUNKS: tl.constexpr = (HIDDEN + CHUNK - 1) // CHUNK
    BLOCKS: tl.constexpr = HIDDEN // 32
    PARTS: tl.constexpr = 0 if KIND == NOTHING else RANKS if KIND == EXPERTS else 1
    first = (row * STREAMS + stream) * HIDDEN
    place = tl.arange(0, CHUNK // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    # Everything is asked for before anything is added: at one row nothing else hides the memory's latency.
    allow_dependents()
    scales = ()
    for chunk in tl.static_range(CHUNKS):
        column = chunk * CHUNK + place
        scales += (tl.load(norm_scale + stream * HIDDEN + column, mask=column < HIDDEN, other=0.0),)
    wait_for_predecessor()
    rank_weights = ()
    for rank in tl.static_range(RANKS):
        rank_weights += (tl.load(weights + row * RANKS + rank),)
    shared_weight = tl.load(shared_weights + row) if HAS_SHARED_WEIGHTS else 1.0
    strength = tl.load(strengths + row * STREAMS + stream) if HAS_STRENGTHS else 1.0
    old = ()
    rows_of_chunks = ()  # PARTS of each chunk
    shared_of_chunks = ()
    for chunk in tl.static_range(CHUNKS):
        column = chunk * CHUNK + place
        is_inside = column < HIDDEN
        old += (tl.load(streams + first + column, mask=is_inside, other=0.0),)
        for part in tl.static_range(PARTS):
            start = first if KIND == VALUES else (row * PARTS + part) * HIDDEN
            rows_of_chunks += (tl.load(rows_added + start + column, mask=is_inside, other=0.0),)
        if HAS_SHARED:
            shared_of_chunks += (tl.load(shared + row * HIDDEN + column, mask=is_inside, other=0.0),)
    values = ()
    for chunk in tl.static_range(CHUNKS):
        value = old[chunk]
        if KIND != NOTHING:
            added = rows_of_chunks[chunk * PARTS]
            if KIND == EXPERTS:
                added = tl.zeros(added.shape, tl.float32)
                for rank in tl.static_range(RANKS):
                    added = add_rank(added, rank_weights[rank], rows_of_chunks[chunk * RANKS + rank])
                if HAS_SHARED_WEIGHTS:
                    added = add_rank(added, shared_weight, shared_of_chunks[chunk])
                elif HAS_SHARED:
                    added += shared_of_chunks[chunk]  # fma(1, shared, total)
            if HAS_STRENGTHS:
                added = strength * added
            value = value + added
            tl.store(streams + first + chunk * CHUNK + place, value, mask=chunk * CHUNK + place < HIDDEN)
        values += (value,)
    mean_square = tl.div_rn(sum_of_squares(values), 1.0 * HIDDEN)
    inverse = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    for chunk in tl.static_range(CHUNKS):
        column = chunk * CHUNK + place
        is_inside = column < HIDDEN
        normed = (values[chunk] * inverse) * scales[chunk]
        if HAS_PLAIN:
            tl.store(plain + first + column, normed, mask=is_inside)
        if HAS_QUANTIZED:
            in_stream = chunk * (CHUNK // 32) + tl.arange(0, CHUNK // 32)
            # Blocks behind the stream's end get the number behind the row's end, which is not written.
            block = tl.where(in_stream < BLOCKS, stream * BLOCKS + in_stream, STREAMS * BLOCKS)
            store_blocks(normed, q, records, row, block, STREAMS * BLOCKS, row_step, block_step)


@dataclass(frozen=True)
class _Added:
    """An addition as the kernel takes it; tensors that are not there are None."""

    kind: int
    rows: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    shared: torch.Tensor | None = None
    shared_weights: torch.Tensor | None = None
    strengths: torch.Tensor | None = None
    ranks: int = 0


def _added(addition: Addition) -> _Added:
    if isinstance(addition, MixerRows):
        return _Added(MIXER.value, addition.output, strengths=addition.strengths)
    if isinstance(addition, Values):
        return _Added(VALUES.value, addition.values)
    if isinstance(addition, ExpertRows):
        parts = (addition.by_rank, addition.weights, addition.shared, addition.shared_weights, addition.strengths)
        return _Added(EXPERTS.value, *parts, ranks=addition.weights.shape[1])
    return _Added(NOTHING.value)


def add_and_norm(
    streams: torch.Tensor, addition: Addition, norm_scale: torch.Tensor, eps: float, streams_count: int, out: RowsOut
) -> None:
    """One launch."""
    rows, hidden = streams.shape[0], streams.shape[1] // streams_count
    added = _added(addition)
    tensors = (added.rows, added.weights, added.shared, added.shared_weights, added.strengths)
    quantized = (streams, streams, 0, 0) if out.quantized is None else out.quantized.arguments
    chunk = min(MOST_CHUNK, max(LEAST_CHUNK, triton.next_power_of_2(hidden)))
    add_and_norm_kernel[(streams_count, rows)](
        streams, *(streams if tensor is None else tensor for tensor in tensors), norm_scale, eps,
        streams if out.plain is None else out.plain, *quantized,
        KIND=added.kind, RANKS=added.ranks, HAS_SHARED=added.shared is not None,
        HAS_SHARED_WEIGHTS=added.shared_weights is not None, HAS_STRENGTHS=added.strengths is not None,
        HAS_PLAIN=out.plain is not None, HAS_QUANTIZED=out.quantized is not None,
        STREAMS=streams_count, HIDDEN=hidden, CHUNK=chunk,
        num_warps=chunk // 32, maxnreg=REGISTERS, enable_fp_fusion=False, **dependent_options(),
    )  # fmt: skip
