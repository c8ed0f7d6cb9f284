"""Triton's elementary functions in its interpreter against float64, and strata.kernels.tails: `make interpreter`."""

import pytest
import torch

from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "log1p_of_fraction", "inverse_root"])
def test_functions_are_exact_to_a_few_units(name: str) -> None:
    from strata.kernels import elementary
    from tests.kernels.triton_row_probes import elementary_kernel

    x = torch.cat((torch.linspace(-80, 80, 1000), torch.logspace(-30, 0, 24) * torch.tensor([1.0, -1.0]).repeat(12)))
    exact = {
        "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
        "silu": lambda x: x / (1 + torch.exp(-x)),
        "softplus": lambda x: x.clamp_min(0) + torch.log1p(torch.exp(-x.abs())),
        "log1p_of_fraction": torch.log1p,
        "inverse_root": lambda x: x**-0.5,
    }[name]
    if name == "inverse_root":
        x = x.abs()
    if name == "log1p_of_fraction":
        x = torch.cat((torch.linspace(0, 1, 1000), torch.logspace(-30, 0, 24)))
    found = torch.empty_like(x)
    elementary_kernel[(4,)](x, found, FUNCTION=getattr(elementary, name))
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=6e-7, atol=1e-38)


@pytest.mark.parametrize("accepted", [1, 2, 3, 5])
def test_a_tail_moves_by_the_accepted_rows(accepted: int) -> None:
    from tests.kernels.triton_row_probes import move_tail_kernel

    width, tail, rows = 20, torch.arange(60.0).reshape(3, 20), 100 + torch.arange(150.0).reshape(5, 30)
    wanted = torch.cat((tail, rows[:, :width]))[accepted : accepted + 3]
    move_tail_kernel[(1,)](tail, rows, 30, width, torch.tensor([accepted]).int(), TAIL=3, COLUMNS=32)
    assert torch.equal(tail, wanted)
