"""Triton's expert rows in its interpreter have the bits of the definition: `make interpreter`."""

import pytest
import torch

from strata.kernels.expert_rows.reference import expert_rows as expert_by_definition
from strata.kernels.expert_rows.reference import silu_times as silu_by_definition
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.launch_shapes import matrix_launch
from strata.quant.layout import BlobLayout
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.joined_cases import experts_into
from tests.kernels.random_matrices import KINDS, Experts, random_choices, random_experts, random_rows

pytestmark = needs_interpreter

KIND = {kind.name: kind for kind in KINDS}
CASES = [  # gate, up, down, hidden, width, rows
    ("q4_0", "q4_0", "q4_0", 32, 32, 1),
    ("q4_0", "q4_0", "q8_0", 96, 64, 3),
    ("q4_k", "q4_k", "q6_k", 256, 256, 2),
    ("q2_0", "q2_0", "mxfp4", 64, 32, 4),
    ("iq4_xs", "q3_k", "nvfp4", 256, 32, 1),
    ("q2_k", "q5_k", "q4_1", 256, 64, 2),
    ("bf16", "bf16", "q8_0", 40, 32, 2),
    ("q8_0", "q8_0", "f16", 64, 37, 2),
    ("fp8", "f32", "code2-any-table", 36, 32, 1),
]


def by_definition(experts: Experts, x: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
    rows = [
        torch.stack([expert_by_definition(*experts.matrices[expert], row[None])[0] for expert in chosen])
        for row, chosen in zip(x, choices.tolist(), strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize(("gate", "up", "down", "hidden", "width", "rows"), CASES)
def test_experts_have_the_bits_of_the_definition(
    gate: str, up: str, down: str, hidden: int, width: int, rows: int
) -> None:
    layout = BlobLayout(
        KIND[gate].layout(width, hidden), KIND[up].layout(width, hidden), KIND[down].layout(hidden, width)
    )
    experts = random_experts(1, layout, 3)
    x, choices = random_rows(2, rows, hidden), random_choices(3, rows, 2, 3)
    out = torch.full((rows, 2, hidden), float("nan"))
    experts_into(out, experts.blobs, ExpertWork.from_choices(choices), x)
    assert torch.equal(out.view(torch.int32), by_definition(experts, x, choices).view(torch.int32))


@pytest.mark.parametrize(("gate", "down", "hidden", "width"), [("q4_0", "q8_0", 96, 64), ("iq4_xs", "q2_k", 256, 256)])
def test_matrix_units_have_the_same_bits(gate: str, down: str, hidden: int, width: int) -> None:
    layout = BlobLayout(
        KIND[gate].layout(width, hidden), KIND[gate].layout(width, hidden), KIND[down].layout(hidden, width)
    )
    experts, x, choices = random_experts(1, layout, 3), random_rows(2, 11, hidden), random_choices(3, 11, 2, 3)
    out = torch.full((11, 2, hidden), float("nan"))
    experts_into(out, experts.blobs, ExpertWork.from_choices(choices), x, matrix_launch(8, 1))
    assert torch.equal(out.view(torch.int32), by_definition(experts, x, choices).view(torch.int32))


def test_blobs_may_lie_anywhere_and_other_places_are_left_alone() -> None:
    kind = KIND["q4_0"]
    layout = BlobLayout(kind.layout(32, 64), kind.layout(32, 64), kind.layout(64, 32))
    experts = random_experts(4, layout, 3)
    starts = torch.tensor([2, 0, 1]) * layout.total_bytes + experts.blobs.memory.data_ptr()
    elsewhere = ExpertBlobs(layout, experts.blobs.memory, addresses=starts)
    x, choices = random_rows(5, 2, 64), torch.tensor([[0, 1], [2, 0]])
    only = [torch.tensor(values).int() for values in ([0, 1], [0, 0, 1], [1], [0])]
    part = ExpertWork(*only, ranks=2, most_rows=1)
    out = torch.full((2, 2, 64), 7.0)
    experts_into(out, elsewhere, part, x)
    wanted = torch.full_like(out, 7.0)
    wanted[0, 1] = expert_by_definition(*experts.matrices[0], x[:1])[0]
    assert torch.equal(out, wanted)
    whole = torch.empty_like(out)
    experts_into(whole, elsewhere, ExpertWork.from_choices(choices), x)
    moved = torch.tensor([2, 0, 1])[choices]
    assert torch.equal(whole, by_definition(experts, x, moved))


def test_work_lists_each_expert_once() -> None:
    work = ExpertWork.from_choices(torch.tensor([[5, 2], [2, 9], [9, 5]]))
    assert work.seats.tolist() == [2, 5, 9]
    assert work.starts.tolist() == [0, 2, 4, 6]
    assert work.places.tolist() == [1, 2, 0, 5, 3, 4]
    assert work.rows.tolist() == [0, 1, 0, 2, 1, 2]


def test_silu_has_the_bits_of_the_definition() -> None:
    from tests.kernels.triton_probes import silu_kernel

    gate = torch.cat((torch.linspace(-100, 100, 1000), torch.tensor([0.0, -0.0, 1e-40, -1e30, 1e30]), torch.zeros(19)))
    up = torch.randn(1024, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(gate)
    silu_kernel[(4,)](gate, up, out)
    assert torch.equal(out.view(torch.int32), silu_by_definition(gate, up).view(torch.int32))
