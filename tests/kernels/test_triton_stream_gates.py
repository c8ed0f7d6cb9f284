"""Triton's gates over residual streams in its interpreter have the bits of the twins: `make interpreter`."""

from collections import Counter
from typing import Any

import pytest
import torch

from strata.kernels.expert_rows.reference import silu_times
from strata.kernels.launch_shapes import few_launch, matrix_launch
from strata.kernels.stream_gates import reference
from tests.kernels.gate_cases import DownCase, GatesCase, low_for
from tests.kernels.interpreter import needs_interpreter
from tests.kernels.random_matrices import KINDS, Kind, random_matrix, random_rows
from tests.kernels.stream_cases import room

pytestmark = needs_interpreter

CPU = torch.device("cpu")
KIND = {kind.name: kind for kind in KINDS}
ALONE, IN_PAIRS, ON_UNITS = (1, False), (2, False), (8, True)  # fields of a GatesLaunch
TURNS = 2  # the second finds what the first has left
DOWN = (
    DownCase(("q8_0",), 64, 96, 1),
    DownCase(("q8_0",), 64, 96, 3, is_plain=True),
    DownCase(("q8_0",), 64, 96, 2, has_strengths=False),
    DownCase(("q8_0",), 64, 96, 1, streams=1),
    DownCase(("q4_0",), 64, 96, 3, streams=3, launch=few_launch(1, 8, 4, 8, 2)),
    DownCase(("q4_0",), 32, 352, 3, launch=few_launch(2, 4, 2, 8, 1)),
    DownCase(("q8_0",), 96, 96, 10, launch=few_launch(4, 16, 1, 4, 1)),
    DownCase(("q8_0",), 64, 96, 19, launch=matrix_launch(8, 1, prefetches=True)),
    DownCase(("q8_0",), 64, 96, 19, launch=matrix_launch(16, 1)),
    DownCase(("f32",), 45, 96, 3, is_plain=True),
    DownCase(("bf16",), 64, 96, 5, launch=few_launch(4, 8, 4, 8, 4)),
    DownCase(("bf16",), 13, 96, 9, streams=3, is_plain=True, launch=few_launch(2, 4, 2, 8, 4)),
    DownCase(("q8_0", "f32"), 64, 96, 3),
    DownCase(("bf16", "f32"), 45, 96, 3, is_plain=True),
)


@pytest.mark.parametrize("case", DOWN, ids=str)
def test_down_makes_the_low_and_the_strengths_of_the_twin(case: DownCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as many programs count in a place as are waited for: the interpreter runs one after another, where a wrong
    count may still give the right bits."""
    from strata.kernels.stream_gates import down

    arrives_last, seen = down.arrives_last, Counter[tuple[int, int]]()

    def noting(arrivals: Any, programs: Any) -> Any:
        seen[int(arrivals.handle.data.item()), int(programs.handle.data.item())] += 1
        return arrives_last(arrivals, programs)

    monkeypatch.setattr(down, "arrives_last", noting)
    case.check(CPU, TURNS)
    if len(case.kinds) == 1:
        assert len({place for place, _ in seen}) == len(seen) > 0
        assert all(count == TURNS * programs for (_, programs), count in seen.items()), seen


def low_rank_of(kind: Kind) -> int:
    """10 blocks as in the published model, where the code allows it: lanes with two blocks and lanes with one."""
    return 45 if kind.step == 1 else 512 if kind.step == 256 else 320


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_code_has_the_bits_of_the_twin(kind: Kind) -> None:
    GatesCase(kind.name, low_rank_of(kind), rows=3).check(CPU)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.step > 1], ids=lambda kind: kind.name)
def test_every_integer_code_has_them_without_the_matrix_units(kind: Kind) -> None:
    GatesCase(kind.name, low_rank_of(kind), rows=3, launch=IN_PAIRS).check(CPU)


@pytest.mark.parametrize("rows", [1, 5, 8, 19])
@pytest.mark.parametrize("launch", [ALONE, IN_PAIRS, ON_UNITS])
def test_every_launch_has_them(rows: int, launch: tuple[int, bool]) -> None:
    GatesCase("q8_0", 320, rows, launch=launch).check(CPU)


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("kind", ["q4_0", "f32"])
def test_any_number_of_streams_has_them(kind: str, streams: int) -> None:
    GatesCase(kind, 64, 4, streams, hidden=64).check(CPU)


def test_more_blocks_than_the_matrix_units_take_have_them() -> None:
    GatesCase("q8_0", 544, 3).check(CPU)


def test_launches_are_of_rows_and_codes() -> None:
    from strata.kernels.stream_gates.groups import MOST_STEPS
    from strata.kernels.stream_gates.triton import GROUP, LANES, GatesLaunch

    layout = KIND["q8_0"].layout(128, 320)
    for rows in (1, 32):
        assert GatesLaunch.of(layout, rows) == GatesLaunch(GROUP, on_matrix_units=True)
    for other in (KIND["bf16"].layout(128, 320), KIND["q8_0"].layout(128, MOST_STEPS * LANES * 32 + 32)):
        assert not GatesLaunch.of(other, 32).on_matrix_units


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


def test_gates_and_low_have_the_bits_of_the_twin() -> None:
    from strata.kernels.stream_gates.gating import sigmoid, silu_of_quantized
    from tests.kernels.triton_gate_probes import function_kernel

    x = torch.cat(
        (torch.linspace(-90, 90, 3840), torch.tensor([0.0, 1e-20, -1e-20, 1e4, -1e4, 88.0, -87.0, 1e30]).repeat(32))
    )
    found = torch.empty_like(x)
    function_kernel[(16,)](x, found, FUNCTION=sigmoid)
    assert torch.equal(bits(found), bits(reference.sigmoid(x)))
    function_kernel[(16,)](x, found, FUNCTION=silu_of_quantized)
    assert torch.equal(bits(found), bits(silu_times(x, torch.ones_like(x))))


def test_the_product_has_the_bits_of_packed_rows() -> None:
    from strata.kernels.packed_rows.triton import packed_rows
    from strata.kernels.stream_gates.triton import stream_gates

    up, low, found = random_matrix(4, KIND["iq4_xs"].layout(64, 256)), random_rows(5, 2, 256), room(2, 64, CPU)
    stream_gates(low_for(up, low, CPU), torch.ones(2, 64), up, 1, found)
    assert found.plain is not None
    assert torch.equal(bits(found.plain), bits(reference.sigmoid(packed_rows(up, low))))


@pytest.mark.parametrize("levels", [3, 4])
def test_lanes_of_tiles_are_added_by_the_tree(levels: int) -> None:
    from tests.kernels.triton_probes import lanes_of_tiles_kernel

    lanes, out = random_rows(4, 2 << levels, 16).reshape(2, 1 << levels, 16), torch.empty(2, 16)
    lanes_of_tiles_kernel[(1,)](lanes, out, TILES=2, LEVELS=levels)
    while lanes.shape[1] > 1:
        low, high = lanes.chunk(2, dim=1)
        lanes = low + high
    assert torch.equal(bits(out), bits(lanes[:, 0].contiguous()))
