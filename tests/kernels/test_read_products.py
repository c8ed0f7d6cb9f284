"""Products of reads: the definition against float64 and decoded weights, and what is refused."""

import pytest
import torch

from strata.kernels.read_products import read_products
from strata.kernels.read_products.launches import WHOLE_STEP, ReadLaunch, blocks_of_step, dense_launch
from strata.kernels.read_products.pair_tables import minus_pair, suits_pairs
from strata.kernels.read_products.reference import read_weights
from strata.quant.layout import Code
from tests.kernels.random_matrices import KINDS, Kind, random_matrix
from tests.kernels.read_cases import random_x

CPU = torch.device("cpu")
KIND = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_products_are_those_of_rounded_weights(kind: Kind) -> None:
    matrix = random_matrix(1, kind.layout(21, 512))
    weights = matrix.decode() if kind.code in (Code.F32, Code.F16) else matrix.decode().to(torch.bfloat16)
    assert torch.equal(read_weights(matrix), weights.double())
    x = random_x(2, 5, 512, CPU)
    out = torch.empty(5, 21)
    read_products([matrix], x, out)
    assert torch.equal(out, (x.double() @ weights.double().T).float())


def test_matrices_lie_side_by_side_and_a_post_scale_comes_last() -> None:
    first, second = random_matrix(1, KIND["q8_0"].layout(5, 64), 0.37), random_matrix(2, KIND["f32"].layout(3, 64))
    x, out = random_x(3, 4, 64, CPU), torch.full((4, 10), 7.0)
    read_products([first, second], x, out[:, 1:9])
    assert torch.equal(out[:, 0], torch.full((4,), 7.0)) and torch.equal(out[:, 9], torch.full((4,), 7.0))
    exact = (x.double() @ read_weights(first).T).float()
    assert torch.equal(out[:, 1:6], exact * torch.tensor(0.37))
    rounded = torch.empty(4, 8, dtype=torch.bfloat16)
    read_products([first, second], x, rounded)
    assert torch.equal(rounded, out[:, 1:9].to(torch.bfloat16))


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 200])
def test_a_row_does_not_depend_on_its_neighbours(rows: int) -> None:
    matrix = random_matrix(1, KIND["f32"].layout(40, 96))
    x = random_x(2, 200, 96, CPU)
    every, some = torch.empty(200, 40), torch.empty(rows, 40)
    read_products([matrix], x, every)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(rows))[:rows]
    read_products([matrix], x[order], some)
    assert torch.equal(some, every[order])


def test_what_does_not_fit_is_refused_by_name() -> None:
    matrix = random_matrix(1, KIND["q8_0"].layout(5, 64))
    x, out = torch.zeros(2, 64, dtype=torch.bfloat16), torch.zeros(2, 5)
    refused = [
        ("no matrix", ([], x, out)),
        ("x must be contiguous bf16", ([matrix], x.float(), out)),
        ("x must be contiguous bf16", ([matrix], torch.zeros(64, 2, dtype=torch.bfloat16).T, out)),
        (r"out must be bf16 or float32 \[2, 5\]", ([matrix], x, torch.zeros(2, 6))),
        (r"out must be bf16 or float32 \[2, 5\]", ([matrix], x, out.half())),
        ("rows of 32 columns are no input for a matrix of 5 x 64", ([matrix], x[:, :32].contiguous(), out)),
    ]
    for message, arguments in refused:
        with pytest.raises(ValueError, match=message):
            read_products(*arguments)


def test_pairs_are_for_small_integers_and_short_scales() -> None:
    suited = {kind.name for kind in KINDS if suits_pairs(kind.layout(16, 256))}
    assert suited == {"q4_0", "mxfp4", "nvfp4"}
    pair = torch.tensor([minus_pair(8)], dtype=torch.int32).view(torch.bfloat16)
    assert pair.tolist() == [-136.0, -136.0]


def test_pairs_have_the_bits_of_the_definition() -> None:
    # What pairs.py does with every float16 scale: float64 is exact here, so each rounding is the one to bf16.
    scale = torch.arange(1 << 16).to(torch.uint16).view(torch.float16).float()
    scale = scale[scale.isfinite()]
    first = (scale.view(torch.int32) & -65536).view(torch.float32)
    rest = scale - first
    for integer in range(-15, 16):
        small = integer * rest.double()
        assert torch.equal(small.to(torch.bfloat16).double(), small)
        total = integer * first.double() + small
        assert torch.equal(total.float().double(), total)
        assert torch.equal(total.float().to(torch.bfloat16), (integer * scale).to(torch.bfloat16)), integer


def test_launches_follow_the_rows() -> None:
    assert [dense_launch(rows).rows for rows in (1, 32, 33, 64, 65, 129)] == [32, 32, 64, 64, 128, 256]
    launch = ReadLaunch(blocks=1)
    assert blocks_of_step(KIND["q4_0"].layout(16, 64), launch) == 1
    for name in ("q2_0", "f32"):
        assert blocks_of_step(KIND[name].layout(16, 64), launch) == WHOLE_STEP
