"""The gated delta rule in chunks of 64, with gradients, for long flat batches.

Knows its two sequential kernels (inverse of a unit lower triangle, the scan over chunks) in Triton and in torch;
knows no layer. On a CPU, or where Triton is missing, the torch twins run.
"""

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twins need nothing
    triton = None

CHUNK = 64

if triton is not None:

    @triton.jit
    def inverse_kernel(p_matrix, p_inverse, SIZE: tl.constexpr):
        i_matrix = tl.program_id(0).to(tl.int64)
        rows = tl.arange(0, SIZE)
        cell = i_matrix * SIZE * SIZE + rows[:, None] * SIZE + rows[None, :]
        lower = tl.load(p_matrix + cell)
        identity = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
        inverse = identity
        for i_row in range(1, SIZE):
            picked = tl.sum(tl.where(rows[:, None] == i_row, lower, 0.0), 0)
            picked = tl.where(rows < i_row, picked, 0.0)
            update = tl.sum(tl.expand_dims(picked, 1) * inverse, 0)
            inverse = tl.where(rows[:, None] == i_row, identity - update[None, :], inverse)
        tl.store(p_inverse + cell, inverse)

    @triton.jit
    def scan_kernel(p_new, p_read, p_key, p_decay, p_offsets, p_states, p_values, heads, D: tl.constexpr):
        i_sequence = tl.program_id(0)
        i_head = tl.program_id(1)
        rows = tl.arange(0, D)
        tile = rows[:, None] * D + rows[None, :]
        flipped = rows[None, :] * D + rows[:, None]
        state = tl.zeros((D, D), dtype=tl.float32)
        for i_chunk in range(tl.load(p_offsets + i_sequence), tl.load(p_offsets + i_sequence + 1)):
            at = (i_chunk * heads + i_head).to(tl.int64)
            base = at * D * D
            tl.store(p_states + base + tile, state)
            read = tl.dot(tl.load(p_read + base + tile), state, input_precision="tf32x3")
            values = tl.load(p_new + base + tile) - read
            tl.store(p_values + base + tile, values)
            key = tl.load(p_key + base + flipped)
            state = state * tl.load(p_decay + at) + tl.dot(key, values, input_precision="tf32x3")

    @triton.jit
    def scan_backward_kernel(
        p_d_values, p_d_states, p_read, p_key, p_decay, p_offsets, p_carried, p_d_new, heads, D: tl.constexpr
    ):
        i_sequence = tl.program_id(0)
        i_head = tl.program_id(1)
        rows = tl.arange(0, D)
        tile = rows[:, None] * D + rows[None, :]
        flipped = rows[None, :] * D + rows[:, None]
        carried = tl.zeros((D, D), dtype=tl.float32)
        first = tl.load(p_offsets + i_sequence)
        last = tl.load(p_offsets + i_sequence + 1)
        for i_step in range(last - first):
            at = ((last - 1 - i_step) * heads + i_head).to(tl.int64)
            base = at * D * D
            tl.store(p_carried + base + tile, carried)
            d_new = tl.load(p_d_values + base + tile)
            d_new += tl.dot(tl.load(p_key + base + tile), carried, input_precision="tf32x3")
            tl.store(p_d_new + base + tile, d_new)
            read = tl.load(p_read + base + flipped)
            carried = carried * tl.load(p_decay + at) + tl.load(p_d_states + base + tile)
            carried -= tl.dot(read, d_new, input_precision="tf32x3")


@torch.library.custom_op("strata_training::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(lower: Tensor) -> Tensor:
    """Inverse of I + lower. lower [matrices, 64, 64] float32, strictly lower triangular."""
    if lower.is_cuda:
        inverse = torch.empty_like(lower)
        inverse_kernel[(lower.shape[0],)](lower, inverse, SIZE=lower.shape[-1], num_warps=4)
        return inverse
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype)
    return torch.linalg.solve_triangular(lower + identity, identity.expand_as(lower), upper=False, unitriangular=True)


@unit_lower_inverse.register_fake
def _(lower: Tensor) -> Tensor:
    return torch.empty_like(lower)


def _inverse_backward(ctx: Any, d_inverse: Tensor) -> Tensor:
    (inverse,) = ctx.saved_tensors
    flipped = inverse.transpose(-1, -2)
    return -(flipped @ d_inverse @ flipped)


unit_lower_inverse.register_autograd(
    _inverse_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output)
)


@torch.library.custom_op("strata_training::scan", mutates_args=())
def scan(new: Tensor, read: Tensor, key: Tensor, decay: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence over chunks: values = new - read @ state; state = decay * state + key^T @ values.

    new, read, key [chunks, heads, 64, 64]; decay [chunks, heads]; offsets [sequences + 1] int32 first chunk of each
    sequence (equal neighbours: an empty one). Returns the state before every chunk, and the values.
    """
    states, values = torch.empty_like(new), torch.empty_like(new)
    heads = new.shape[1]
    if new.is_cuda:
        grid = (offsets.shape[0] - 1, heads)
        scan_kernel[grid](new, read, key, decay, offsets, states, values, heads, D=new.shape[-1], num_warps=4)
        return states, values
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        state = torch.zeros_like(new[0])
        for chunk in range(first, last):
            states[chunk] = state
            values[chunk] = new[chunk] - read[chunk] @ state
            state = state * decay[chunk, :, None, None] + key[chunk].transpose(-1, -2) @ values[chunk]
    return states, values


@scan.register_fake
def _(new: Tensor, read: Tensor, key: Tensor, decay: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(new), torch.empty_like(new)


@torch.library.custom_op("strata_training::scan_backward", mutates_args=())
def scan_backward(
    d_values: Tensor, d_states: Tensor, read: Tensor, key: Tensor, decay: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """The scan's gradient, last chunk first. Returns the gradient carried into each chunk's end, and that of `new`."""
    carried_all, d_new_all = torch.empty_like(read), torch.empty_like(read)
    heads = read.shape[1]
    if read.is_cuda:
        grid = (offsets.shape[0] - 1, heads)
        scan_backward_kernel[grid](
            d_values, d_states, read, key, decay, offsets, carried_all, d_new_all, heads, D=read.shape[-1], num_warps=4
        )
        return carried_all, d_new_all
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        carried = torch.zeros_like(read[0])
        for chunk in range(last - 1, first - 1, -1):
            carried_all[chunk] = carried
            d_new_all[chunk] = d_values[chunk] + key[chunk] @ carried
            carried = carried * decay[chunk, :, None, None] + d_states[chunk]
            carried = carried - read[chunk].transpose(-1, -2) @ d_new_all[chunk]
    return carried_all, d_new_all


@scan_backward.register_fake
def _(
    d_values: Tensor, d_states: Tensor, read: Tensor, key: Tensor, decay: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(read), torch.empty_like(read)


def _scan_setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, read, key, decay, offsets = inputs
    ctx.save_for_backward(read, key, decay, offsets, *output)


def _scan_gradient(ctx: Any, d_states: Tensor, d_values: Tensor) -> tuple[Tensor | None, ...]:
    read, key, decay, offsets, states, values = ctx.saved_tensors
    carried, d_new = scan_backward(d_values.contiguous(), d_states.contiguous(), read, key, decay, offsets)
    d_read = -(d_new @ states.transpose(-1, -2))
    d_key = values @ carried.transpose(-1, -2)
    d_decay = (states * carried).sum((-1, -2))
    return d_new, d_read, d_key, d_decay, None


scan.register_autograd(_scan_gradient, setup_context=_scan_setup)


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, offsets: Tensor
) -> Tensor:
    """Outputs of the gated delta rule for flat rows that start in empty states.

    query, key, value [rows, heads, 64] float32 with query and key of unit length; log_decay, beta [rows, heads];
    offsets as in `scan`; rows a multiple of 64 and sequences cut at multiples of 64. -> [rows, heads, 64].
    """
    rows, heads, width = value.shape

    def chunked(x: Tensor) -> Tensor:
        return x.view(rows // CHUNK, CHUNK, heads, -1).transpose(1, 2).contiguous()

    query, key, value = chunked(query * width**-0.5), chunked(key), chunked(value)
    beta = chunked(beta)
    total = chunked(log_decay).squeeze(-1).cumsum(-1)  # [chunks, heads, 64]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=value.device).tril()
    pairwise = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    key_beta = key * beta
    strict = ((key_beta @ key.transpose(-1, -2)) * pairwise).tril(-1)
    inverse = unit_lower_inverse(strict.reshape(-1, CHUNK, CHUNK)).view_as(strict)
    decayed = total.unsqueeze(-1).exp()
    last = total[..., -1:]
    states, values = scan(
        inverse @ (value * beta),
        inverse @ (key_beta * decayed),
        key * (last - total).exp().unsqueeze(-1),
        last.squeeze(-1).exp(),
        offsets,
    )
    scores = (query @ key.transpose(-1, -2)) * pairwise
    output = (query * decayed) @ states + scores @ values
    return output.transpose(1, 2).reshape(rows, heads, width)
