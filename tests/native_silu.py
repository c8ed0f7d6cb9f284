"""The C++ library's silu(gate) * up, for tests of what is built on it."""

import torch

from strata.native import library


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate / (1 + exp(-gate)) * up, element-wise, with the contract's exp: float32 of one shape."""
    gate, up = gate.contiguous(), up.contiguous()
    h = torch.empty_like(gate)
    library.check(library.load().strata_silu_mul(gate.data_ptr(), up.data_ptr(), h.data_ptr(), gate.numel()))
    return h
