"""Triton's joined launches in its interpreter have the bits of the definition: `make interpreter`.

Two matrices of different layouts, a layer's experts with the shared one, silu(gate) * up.
"""

import pytest
import torch

from strata.kernels.expert_rows.buffers import ExpertBuffers
from strata.kernels.expert_rows.work import ExpertWork
from strata.kernels.launch_shapes import dp4a_launch, few_launch, listed_launch, matrix_launch
from strata.quant.layout import BlobLayout
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.joined_cases import KIND, ExpertsCase, JoinedCase, check_hidden, filled, room_on
from tests.kernels.random_matrices import random_choices, random_experts, random_rows

pytestmark = needs_interpreter

CPU = torch.device("cpu")
JOINED = (
    JoinedCase(("f32", "q8_0"), (21, 40), 96, 1),
    JoinedCase(("q4_k", "q8_0"), (32, 5), 256, 3),
    JoinedCase(("q8_0", "bf16"), (17, 33), 64, 2, (dp4a_launch(2, 1, 1), dp4a_launch(1, 1, 4))),
    JoinedCase(("q4_0", "mxfp4"), (21, 16), 64, 3, (matrix_launch(8, 1), matrix_launch(8, 1))),
    JoinedCase(("bf16", "q8_0"), (16, 21), 64, 3, (dp4a_launch(2, 8, 1), matrix_launch(8, 1))),
    JoinedCase(("q4_0", "q8_0", "f32"), (16, 7, 20), 64, 2),
    JoinedCase(("f32", "q8_0"), (21, 20), 320, 2, (few_launch(1, 4, 1, 4, 4), few_launch(2, 8, 2, 4, 1))),
    JoinedCase(("f32", "q8_0"), (21, 20), 320, 5, (few_launch(4, 8, 4, 8, 8), matrix_launch(8, 1))),
    JoinedCase(("fp8", "q8_0"), (21, 20), 352, 9, (few_launch(8, 4, 8, 8, 2), matrix_launch(8, 1))),
)
EXPERTS = (
    ExpertsCase(("q4_0", "q4_0", "q4_0"), 96, 64, 3, ("q8_0", 32)),
    ExpertsCase(("q4_0", "q4_0", "q8_0"), 64, 32, 1, ("bf16", 37)),
    ExpertsCase(("bf16", "bf16", "f16"), 40, 33, 2, ("q8_0", 64), unused=1),
    ExpertsCase(("iq4_xs", "q3_k", "q4_k"), 256, 256, 2),
    ExpertsCase(("q4_0", "f32", "q4_0"), 64, 32, 2, ("q4_0", 32)),
    ExpertsCase(("q4_0",) * 3, 96, 64, 4, ("q8_0", 32), experts=6, launch=listed_launch(2, 1, 1, alone=2, tiles=4)),
    ExpertsCase(("q4_k",) * 3, 256, 256, 5, None, 1, experts=4, launch=listed_launch(4, 1, 2, alone=1, tiles=2)),
    ExpertsCase(("bf16", "bf16", "q8_0"), 48, 32, 3, ("q8_0", 64), launch=listed_launch(2, 1, 4, tiles=2)),
    ExpertsCase(("q8_0", "q8_0", "q8_0"), 64, 32, 4, ("q8_0", 32), unused=2, launch=matrix_launch(8, 1)),
)


@pytest.mark.parametrize("case", JOINED, ids=str)
def test_matrices_under_one_another_have_the_bits_of_the_definition(case: JoinedCase) -> None:
    case.check(CPU)


@pytest.mark.parametrize("case", EXPERTS, ids=str)
def test_experts_over_given_buffers_have_the_bits_of_the_definition(case: ExpertsCase) -> None:
    case.check(CPU)


@pytest.mark.parametrize(("kind", "width", "rows"), [("q8_0", 320, 2), ("f32", 45, 3)])
def test_hidden_rows_are_those_of_the_definition(kind: str, width: int, rows: int) -> None:
    check_hidden(kind, width, rows, CPU)


def test_h_is_made_beside_gate_and_up_where_codes_are_integers() -> None:
    from strata.kernels.expert_rows.gate_up_hidden import is_possible

    def layout(gate: str, up: str, down: str) -> BlobLayout:
        return BlobLayout(KIND[gate].layout(32, 256), KIND[up].layout(32, 256), KIND[down].layout(256, 32))

    plain, units = dp4a_launch(1, 1, 1), matrix_launch(8, 1)
    assert is_possible(layout("q4_0", "q4_0", "q8_0"), plain)
    assert not is_possible(layout("q4_0", "q4_0", "q8_0"), units)
    assert not is_possible(layout("q4_0", "q8_0", "q8_0"), plain)
    assert not is_possible(layout("bf16", "bf16", "q8_0"), plain)
    assert not is_possible(layout("q4_0", "q4_0", "f16"), plain)


def test_h_has_the_same_bits_from_one_launch_and_from_two() -> None:
    from strata.kernels.expert_rows.gate_up_hidden import gate_up_hidden_into
    from strata.kernels.expert_rows.window import gate_up_into, hidden_into

    layout = BlobLayout(*(KIND["q4_1"].layout(96, 64),) * 2, KIND["q8_0"].layout(64, 96))
    blobs, work = random_experts(1, layout, 3).blobs, ExpertWork.from_choices(random_choices(2, 3, 2, 3))
    rows = filled(random_rows(3, 3, 64), room_on(CPU, [layout.gate], 3))
    made = []
    for is_joined in (True, False):
        hidden = room_on(CPU, [layout.down], 6)
        buffers = ExpertBuffers(torch.empty(6, 192), hidden, torch.empty(3, 2, 64))
        if is_joined:
            gate_up_hidden_into(blobs, work, rows, buffers, None)
        else:
            gate_up_into(blobs, work, rows, buffers.gate_up)
            hidden_into(96, work, buffers, None)
        assert hidden.quantized is not None
        made.append(hidden.quantized)
    assert torch.equal(made[0].values, made[1].values) and torch.equal(made[0].records, made[1].records)
