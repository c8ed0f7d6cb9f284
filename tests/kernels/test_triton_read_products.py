"""Products of reads by Triton in its interpreter are the definition's, and each row's own: `make interpreter`."""

import pytest
import torch

from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import KINDS, Kind
from tests.kernels.read_cases import ProductCase, random_x

pytestmark = needs_interpreter

CPU = torch.device("cpu")
KIND = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_code_is_decoded_as_defined(kind: Kind) -> None:
    # A last step that is not full where the kind allows it, a tile of outputs that is not full.
    columns = 96 if 96 % kind.step == 0 else 256 if kind.step == 256 else 64
    ProductCase(kind, 21, columns, 3).check(CPU, [])


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_a_row_has_its_bits_among_any_others(rows: int) -> None:
    from strata.kernels.read_products.launches import ReadLaunch

    case = ProductCase(KIND["q4_0"], 16, 96, rows, torch.bfloat16)
    case.check(
        CPU,
        [[rows - 1], list(range(rows - 1, -1, -7))],
        [ReadLaunch(32, 32, 128, blocks=1, groups=2), ReadLaunch(64, 0, 64, blocks=4)],
    )


def test_columns_that_are_no_whole_blocks_are_multiplied_too() -> None:
    for name in ("f32", "bf16"):
        ProductCase(KIND[name], 19, 13, 3).check(CPU, [[1]])


def test_rows_are_loaded_up_to_the_last_column() -> None:
    from tests.kernels.triton_read_probes import rows_kernel

    x, row = random_x(1, 4, 24, CPU), torch.tensor([2, 0], dtype=torch.int32)
    for columns, is_aligned in ((24, True), (24, False)):
        out = torch.full((2, 16), float("nan"))
        rows_kernel[(1,)](x, row, columns, out, K=16, EVEN=False, ALIGNED=is_aligned, ROWS=2)
        assert torch.equal(out[:, :8], x[row.long(), 16:].float())
        assert torch.equal(out[:, 8:], torch.zeros(2, 8))


def test_small_loads_are_made_often_and_read_once() -> None:
    from tests.kernels.triton_read_probes import ahead_kernel

    source = torch.arange(2 * 4 * 16, dtype=torch.int16).view(2, 4, 16)
    for warps in (1, 4, 8):  # one copy, four, eight
        out = torch.full_like(source, -1)
        ahead_kernel[(1,)](source, out, 4, P=2, S=4, EVEN=True, WARPS=warps)
        assert torch.equal(out, source)
        ahead_kernel[(1,)](source, out, 3, P=2, S=4, EVEN=False, WARPS=warps)
        assert torch.equal(out[:, :3], source[:, :3]) and not out[:, 3:].any()


def test_three_parts_are_the_whole_float() -> None:
    from tests.kernels.triton_read_probes import parts_kernel

    values = torch.cat((random_x(1, 1, 30, CPU)[0].float() * 1.0000001, torch.tensor([0.0, 1e-30])))
    parts = torch.empty(3, 32, dtype=torch.bfloat16)
    parts_kernel[(1,)](values.view(torch.int32), parts, N=32)
    assert torch.equal(parts.double().sum(dim=0), values.double())
    assert torch.equal(parts[2], values.to(torch.bfloat16))


def test_a_scale_is_cut_into_two_numbers_of_few_bits() -> None:
    from tests.kernels.triton_read_probes import pairs_kernel

    scale = torch.linspace(-3.0, 5.0, 32).view(4, 8).half().float()
    out = torch.empty(2, 4, 8, dtype=torch.int32)
    pairs_kernel[(1,)](scale.view(torch.int32), out, 4, 8)
    first, rest = out.view(torch.bfloat16).view(2, 4, 8, 2).float()
    assert torch.equal(first[..., 0], first[..., 1]) and torch.equal(rest[..., 0], rest[..., 1])
    assert torch.equal(first[..., 0] + rest[..., 0], scale)
    assert bool((rest[..., 0] != 0).any())
