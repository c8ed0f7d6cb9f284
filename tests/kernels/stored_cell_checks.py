"""Triton's stored heads held against the definition, bit for bit, for the interpreter's tests and for tests/gpu."""

import torch

from strata.quant.cell_codes import HEAD_DIMS, CellCode, CellRows, decode, encode, rotate
from tests.quant.hard_heads import hard_heads


def check_code(code: CellCode, device: torch.device | str) -> None:
    """Codes and scales of hard heads, and what they decode to, of every size of head."""
    from strata.kernels.stored_cells import pointers
    from tests.kernels.triton_cell_probes import decode_kernel, store_kernel

    for head_dim in HEAD_DIMS:
        x = hard_heads(head_dim, 18).to(device)
        rows, wanted = CellRows.zeros(code, len(x), head_dim=head_dim, device=device), encode(code, x)
        options = {"CODE": code.value, "DIM": head_dim, "num_warps": 1, "enable_fp_fusion": False}
        store_kernel[(len(x),)](x, *pointers(rows), **options)
        for found, part in zip(rows.tensors, wanted.tensors, strict=True):
            assert torch.equal(found, part), f"stored heads of {head_dim} as {code.value}"
        values = torch.empty_like(x)
        decode_kernel[(2,)](*pointers(rows), values, len(x), **options)
        assert torch.equal(values, decode(code, wanted, head_dim)), f"decoded heads of {head_dim} as {code.value}"


def check_rotation(device: torch.device | str) -> None:
    """Heads are rotated by one warp and by several, which then exchange values."""
    from tests.kernels.triton_cell_probes import rotate_kernel

    for head_dim in HEAD_DIMS:
        x = hard_heads(head_dim, 18).to(device)
        for warps in (1, 8):
            found = torch.empty_like(x)
            rotate_kernel[(len(x),)](x, found, DIM=head_dim, num_warps=warps, enable_fp_fusion=False)
            assert torch.equal(found, rotate(x)), f"heads of {head_dim} by {warps} warps"


def check_levels(device: torch.device | str) -> None:
    """Of every byte and both nibbles, as matrix units take them."""
    from tests.kernels.triton_cell_probes import levels_kernel

    number = torch.arange(256, device=device)
    whole, low, high = (torch.empty(256, dtype=torch.bfloat16, device=device) for _ in range(3))
    levels_kernel[(1,)]((number - 128).to(torch.int8), number.to(torch.uint8), whole, low, high, num_warps=2)
    for found, wanted in ((whole, number - 128), (low, number % 16 - 8), (high, number // 16 - 8)):
        assert torch.equal(found.float(), wanted.float())


def check_thirds(device: torch.device | str) -> None:
    """Three bfloat16 are exactly the float32."""
    from tests.kernels.triton_cell_probes import thirds_kernel

    x = hard_heads(256).to(device)[5] * torch.linspace(-12, 12, 256, device=device).exp()
    found = torch.empty(3, 256, device=device)
    thirds_kernel[(1,)](x, found, num_warps=2, enable_fp_fusion=False)
    assert torch.equal(found.double().sum(dim=0), x.double())
    assert torch.equal(found.bfloat16().float(), found), "thirds that are no bfloat16"
