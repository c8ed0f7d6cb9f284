"""Triton's interpreter: of several programs exactly one is last, sees what all wrote, and counts from zero again."""

import torch

from tests.kernels.arrival_cases import check_arrivals
from tests.kernels.interpreter import needs_interpreter

pytestmark = needs_interpreter


def test_the_last_program_of_a_group_sees_what_all_wrote() -> None:
    check_arrivals(torch.device("cpu"), turns=3)
