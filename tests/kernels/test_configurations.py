"""The table of launches is whole and allowed; every row count finds one; unknown devices get the stated defaults."""

import pytest

from strata.kernels.configurations import (
    MOST_DEFAULT_ROWS,
    default_launch,
    expert_launch,
    in_one_launch,
    joined_launches,
    packed_launch,
)
from strata.kernels.launch_shapes import (
    ROW_BUCKETS,
    LaunchShape,
    ShapeClass,
    WeightClass,
    dense_class,
    dp4a_launch,
    is_linear,
    matrix_launch,
    row_bucket,
    weight_class,
)
from strata.kernels.measured import MEASURED
from tests.kernels.random_matrices import FP4, KINDS, counting

KIND = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 1000])
def test_a_bucket_is_the_least_that_holds_the_rows(rows: int) -> None:
    bucket = row_bucket(rows)
    assert bucket in ROW_BUCKETS
    assert bucket == ROW_BUCKETS[-1] or bucket >= rows
    assert all(smaller < rows for smaller in ROW_BUCKETS if smaller < bucket)


@pytest.mark.parametrize("device", list(MEASURED))
def test_a_table_has_an_allowed_launch_for_every_bucket(device: str) -> None:
    for (_, weights), launches in MEASURED[device].items():
        assert len(launches) == len(ROW_BUCKETS)
        for launch in launches:
            groups = (8, 16, 32) if launch.uses_matrix_units else (1, 2, 4, 8)
            assert launch.rows in groups and launch.warps in ((8,) if launch.uses_matrix_units else (1, 2, 4, 8))
            assert not (launch.uses_matrix_units and weights is WeightClass.FLOAT)
            assert launch.registers is None or launch.registers * launch.warps * 32 <= 65536


@pytest.mark.parametrize("device", list(MEASURED))
def test_what_is_looked_up_is_the_table(device: str) -> None:
    layout = KIND["q8_0"].layout(2560, 6144)
    wanted = MEASURED[device][ShapeClass.NARROW, WeightClass.CODE8]
    assert tuple(packed_launch(device, layout, rows) for rows in ROW_BUCKETS) == wanted
    assert packed_launch(device, layout, 5) == packed_launch(device, layout, 8)
    experts = MEASURED[device][ShapeClass.EXPERTS, WeightClass.CODE8]
    assert expert_launch(device, layout, 3, is_in_place=False) == experts[ROW_BUCKETS.index(4)]


def test_down_of_experts_may_have_launches_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, ours, others = KIND["q4_0"].layout(2560, 640), dp4a_launch(1, 1, 3), dp4a_launch(1, 1, 2)
    table = {(ShapeClass.EXPERTS, WeightClass.CODE4): (others,) * len(ROW_BUCKETS)}
    monkeypatch.setitem(MEASURED, "a card", table)
    assert expert_launch("a card", layout, 1, is_in_place=False, is_down=True) == others
    table[ShapeClass.DOWN, WeightClass.CODE4] = (ours,) * len(ROW_BUCKETS)
    assert expert_launch("a card", layout, 1, is_in_place=False, is_down=True) == ours
    assert expert_launch("a card", layout, 1, is_in_place=False) == others


def test_lists_in_which_some_lie_in_main_memory_take_the_others_launches_unless_they_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout, ours, others = KIND["q4_0"].layout(2560, 640), dp4a_launch(1, 1, 3), dp4a_launch(1, 1, 2)
    table = {(ShapeClass.EXPERTS, WeightClass.CODE4): (others,) * len(ROW_BUCKETS)}
    table[ShapeClass.DOWN, WeightClass.CODE4] = (ours,) * len(ROW_BUCKETS)
    monkeypatch.setitem(MEASURED, "a card", table)
    assert expert_launch("a card", layout, 1, is_in_place=True) == others
    assert expert_launch("a card", layout, 1, is_in_place=True, is_down=True) == ours
    table[ShapeClass.IN_PLACE, WeightClass.CODE4] = (default_launch(1),) * len(ROW_BUCKETS)
    assert expert_launch("a card", layout, 1, is_in_place=True, is_down=True) == default_launch(1)


def test_a_matrix_of_very_few_tiles_has_launches_of_its_own() -> None:
    for device in MEASURED:
        for name, weights in (("f32", WeightClass.FLOAT), ("q8_0", WeightClass.CODE8)):
            slim = KIND[name].layout(512, 2560)
            wanted = MEASURED[device][ShapeClass.FEW, weights]
            assert tuple(packed_launch(device, slim, rows) for rows in ROW_BUCKETS) == wanted
            assert packed_launch(device, KIND[name].layout(1024, 2560), 1) not in wanted


@pytest.mark.parametrize("device", list(MEASURED))
def test_parts_of_tiles_and_blocks_side_by_side_are_for_dense_matrices_without_matrix_units(device: str) -> None:
    for (shape, weights), launches in MEASURED[device].items():
        for launch in launches:
            is_of_experts = shape in (ShapeClass.EXPERTS, ShapeClass.DOWN)
            assert not (is_of_experts and launch.prefetches)
            is_plain = is_of_experts or launch.uses_matrix_units
            assert launch.outputs in ((16,) if is_plain else (4, 8, 16))
            sides = (1, 2, 4, 8) if weights is WeightClass.FLOAT else (1, 2, 4)
            assert launch.side in ((1,) if is_plain else sides)
            assert weights is not WeightClass.FLOAT or launch.side <= launch.rows


def test_matrices_that_share_a_launch_have_its_warps_and_registers() -> None:
    few, many = KIND["f32"].layout(512, 64), KIND["q8_0"].layout(8000, 64)
    one = in_one_launch([dp4a_launch(1, 4, 8, 128), dp4a_launch(1, 2, 2, 96)], [few, many])
    assert one == [dp4a_launch(1, 4, 8, 128), dp4a_launch(1, 4, 1, 128)]
    tight = in_one_launch([dp4a_launch(2, 8, 32, 128), matrix_launch(8, 8, 255, prefetches=True)], [few, many])
    assert tight[1] == matrix_launch(8, 4, 128)  # half of the registers hold half of the loads, and none ahead
    on_units = in_one_launch([dp4a_launch(4, 4, 8), matrix_launch(8, 4, 128)], [few, many])
    assert on_units == [dp4a_launch(4, 8, 4, 128), matrix_launch(8, 4, 128)]
    together = in_one_launch([dp4a_launch(2, 2, 2), matrix_launch(16, 2, 80)], [many, many])
    assert together == [matrix_launch(16, 2, 80)] * 2


@pytest.mark.parametrize("device", [*MEASURED, "a GPU without a table"])
@pytest.mark.parametrize("rows", ROW_BUCKETS)
def test_every_pair_of_codes_can_share_a_launch(device: str, rows: int) -> None:
    layouts = [KIND[name].layout(outputs, 256) for name in ("q4_k", "q8_0", "bf16") for outputs in (512, 8000)]
    for first in layouts:
        for second in layouts:
            launches = joined_launches(device, [first, second], rows)
            assert len({(launch.warps, launch.registers) for launch in launches}) == 1
            for launch, layout in zip(launches, (first, second), strict=True):
                assert not (launch.uses_matrix_units and layout.code.is_float)
                assert not launch.uses_matrix_units or launch.warps == 8
                assert launch.registers is None or launch.registers * launch.warps * 32 <= 65536


def test_unknown_devices_get_the_defaults() -> None:
    layout = KIND["q4_0"].layout(2560, 6144)
    for rows in (1, 2, 5, 40):
        assert packed_launch("a new GPU", layout, rows) == default_launch(rows)
        assert expert_launch("a new GPU", layout, rows, is_in_place=True) == default_launch(rows)
    assert default_launch(1) == LaunchShape(rows=1, unroll=2)
    assert default_launch(1000) == LaunchShape(rows=MOST_DEFAULT_ROWS)


def test_classes_follow_from_the_layout() -> None:
    names = {"q2_0": WeightClass.CODE2, "q4_k": WeightClass.CODE4, "iq4_xs": WeightClass.CODE4_TABLE}
    names |= {"q6_k": WeightClass.CODE8, "fp8": WeightClass.FLOAT, "code2-any-table": WeightClass.CODE2}
    assert {name: weight_class(KIND[name].layout(16, 256)) for name in names} == names
    assert dense_class(KIND["q8_0"].layout(2560, 64)) is ShapeClass.NARROW
    assert dense_class(KIND["q8_0"].layout(10240, 64)) is ShapeClass.WIDE
    assert is_linear(counting(16, -8)) and not is_linear(FP4) and not is_linear(())


def test_a_launch_says_what_it_is() -> None:
    assert dp4a_launch(2, 4, 1, 64) == LaunchShape(rows=2, warps=4, registers=64)
    assert matrix_launch(16, 2) == LaunchShape(rows=16, warps=8, unroll=2, uses_matrix_units=True)
    assert matrix_launch(16, 2).options["num_warps"] == 8
    pytest.importorskip("triton")
    from strata.kernels.packed_rows.decode import decode_steps

    with pytest.raises(ValueError, match="float code has no integers"):
        decode_steps(KIND["bf16"].layout(16, 64)).constants(by_bytes=True)
