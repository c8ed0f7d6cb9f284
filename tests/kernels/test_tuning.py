"""The tuning script's decisions, without a GPU: which candidate wins, how the table is spelled, and what a floor is."""

import pytest

from strata.kernels import launch_shapes
from strata.kernels.configurations import joined_launches
from strata.kernels.launch_shapes import (
    ROW_BUCKETS,
    LaunchShape,
    ShapeClass,
    WeightClass,
    dp4a_launch,
    few_launch,
    matrix_launch,
)
from strata.kernels.measured import MEASURED
from tests.gpu.candidates import (
    Line,
    dense_candidates,
    dense_lines,
    expert_candidates,
    spelled,
)
from tests.gpu.chain_candidates import CHAINS, Chain, candidates, kernels, lines, timed_rows
from tests.gpu.floors import Rates, float_operations, floor_seconds, matrix_bytes
from tests.gpu.tune import Timed, best_of, report
from tests.gpu.tune_few import better_entries
from tests.kernels.random_matrices import KINDS

KIND = {kind.name: kind for kind in KINDS}
DENSE, EXPERTS = Line(ShapeClass.WIDE, "q8_0", 8), Line(ShapeClass.EXPERTS, "q8_0", 8)
FEW = few_launch(2, 8, 4, 8, 1, None, False)
ONE, TWO, FOUR = dp4a_launch(1, 1, 1), dp4a_launch(2, 1, 1, 168), matrix_launch(8, 4, 128)


def test_a_dense_line_goes_to_the_greatest_geometric_mean() -> None:
    found = [Timed(DENSE, ONE, (100.0, 4000.0)), Timed(DENSE, TWO, (900.0, 900.0)), Timed(DENSE, FOUR, (890.0, 900.0))]
    assert [timed.launch for timed in best_of(found)] == [TWO, FOUR, ONE]


def test_of_experts_launches_that_are_alike_the_one_for_shared_experts_wins() -> None:
    found = [
        Timed(EXPERTS, ONE, (1000.0,), (300.0,)),
        Timed(EXPERTS, TWO, (950.0,), (800.0,)),
        Timed(EXPERTS, FOUR, (900.0,), (2000.0,)),  # too slow in random windows
    ]
    assert best_of(found)[0].launch == TWO


@pytest.mark.parametrize("launch", [ONE, TWO, FOUR, matrix_launch(16, 2), FEW])
def test_a_spelled_launch_is_that_launch(launch: LaunchShape) -> None:
    assert eval(spelled(launch), vars(launch_shapes)) == launch


def test_the_report_is_a_table_of_the_classes_that_are_complete() -> None:
    whole = [Timed(Line(ShapeClass.NARROW, "q4_0", rows), FOUR, (1.0,)) for rows in ROW_BUCKETS]
    part = [Timed(Line(ShapeClass.IN_PLACE, "q4_0", 1), ONE, (1.0,))]
    table = eval("{" + "".join(report(whole + part, 1)) + "}", vars(launch_shapes))
    assert table == {(ShapeClass.NARROW, WeightClass.CODE4): (FOUR,) * len(ROW_BUCKETS)}


def test_every_candidate_is_allowed_for_its_rows() -> None:
    for line, _, _ in dense_lines():
        is_float = KIND[line.kind].code.is_float
        for launch in dense_candidates(line.rows, is_float):
            assert not (is_float and launch.uses_matrix_units)
            assert launch.rows <= max(line.rows, 8)
    for rows in ROW_BUCKETS:
        assert all(launch.rows <= rows for launch in expert_candidates(rows))


@pytest.mark.parametrize("device", list(MEASURED))
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_every_candidate_of_a_chain_is_allowed_and_the_first_is_the_tables(device: str, chain: Chain) -> None:
    for rows in timed_rows(chain):
        found = candidates(chain, device, rows)
        assert list(found[0]) == joined_launches(device, chain.layouts(), rows)
        assert len(found) == len(set(found)) > 1
        for launches in found:
            assert len({(launch.warps, launch.registers) for launch in launches}) == 1
            for launch, layout in zip(launches, chain.layouts(), strict=True):
                assert not (launch.uses_matrix_units and (layout.code.is_float or launch.warps != 8))
                assert launch.registers is not None and launch.registers * launch.warps * 32 <= 65536
                assert launch.side <= (launch.rows if layout.code.is_float else 4)
    assert {chain.kinds for chain in CHAINS} == {chain.kinds for chain, _, _ in kernels(device, lines())}


def test_lines_are_all_in_the_chains_order_or_those_asked_for() -> None:
    assert list(dict.fromkeys(chain for chain, _ in lines())) == list(CHAINS)
    assert sorted((chain.name, rows) for chain, rows in lines({"few", "head"}, {2, 8})) == [
        ("few", 2),
        ("few", 8),
        ("head", 8),  # which is not timed at 2 rows
    ]


@pytest.mark.parametrize("device", list(MEASURED))
def test_an_entry_changes_where_a_candidate_is_better_on_all_its_matrices(device: str) -> None:
    key = (ShapeClass.WIDE, WeightClass.CODE8)
    table = MEASURED[device][key]
    times = {
        (key, 1): {table[0]: [10.0, 100.0], ONE: [8.0, 110.0], TWO: [2.0]},  # TWO was not timed on the second
        (key, 4): {table[2]: [10.0], ONE: [9.8]},  # too little
    }
    better = eval("{" + "\n".join(better_entries(device, times)) + "}", vars(launch_shapes))
    assert better == {key: (ONE, *table[1:])}
    assert better_entries(device, {(key, 4): times[key, 4]}) == []


def test_a_floor_is_the_longer_of_reading_and_computing() -> None:
    layout = KIND["q4_k"].layout(2560, 6144)
    assert float_operations(layout, 4) == 2560 * (6144 // 32) * 4 * 5
    assert float_operations(KIND["nvfp4"].layout(16, 64), 1) == 16 * 4 * 3
    assert float_operations(KIND["bf16"].layout(16, 64), 3) == 16 * 64 * 3
    assert matrix_bytes(layout) == 2560 * 6144 * 4.625 / 8
    rates = Rates(read_bytes=1e12, float_operations=1e12)
    assert floor_seconds(2e12, 1e12, rates) == 2.0
    assert floor_seconds(1e12, 3e12, rates) == 3.0
    assert Rates.of(4000.0, 132) == Rates(4e12, 132 * 128 * 1.98e9)
