"""Ops are told apart, counted in bytes and held against their twins before a time may be shown."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from strata.bench import conversations, window_ops
from strata.bench.kernel_profile import MARKER, split_at_markers
from strata.bench.step_bytes import step_bytes
from strata.bench.synthetic_model import make_model, synthetic_config
from strata.bench.window_bytes import window_bytes
from strata.bench.window_ops import check_ops, measure_ops, summed
from strata.engine.stage import Stage, StageSizes, Variant
from strata.errors import EngineError
from strata.kernels import roads
from strata.models.device import walk
from strata.models.device.description import DeviceModel
from strata.models.device.launches import Program
from strata.models.device.synthetic import SyntheticForm
from strata.quant.cell_codes import CellKind
from strata.weights.presets import STYLES, preset_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> DeviceModel:
    return make_model(synthetic_config(4, True), SyntheticForm(), CPU)


def program_of(model: DeviceModel, slots: int) -> Program:
    return Stage(model, StageSizes(slots, 512), (slots,)).launches(Variant.WINDOW, slots)


@pytest.mark.parametrize(("slots", "context"), [(1, 50), (4, 50), (2, 400)])
def test_the_steps_together_move_what_the_window_moves(model: DeviceModel, slots: int, context: int) -> None:
    steps = sum(step_bytes(model, launch, slots, context, CellKind.BF16) for launch in program_of(model, slots))
    history = slots * 2 * 4  # two tokens of four bytes, which the hashes read: in no step
    assert steps == pytest.approx(window_bytes(model, slots, context, CellKind.BF16).total, abs=history)


@pytest.mark.parametrize("family", [family for family in STYLES if family != "qwen4_exp"])
def test_the_other_families_too(family: str) -> None:
    config = preset_config(family, "tiny")
    if config.get("text_config", config).get("mtp_num_hidden_layers"):
        config.get("text_config", config)["mtp_num_hidden_layers"] = 0
    other = make_model(config, SyntheticForm(), CPU)
    steps = sum(step_bytes(other, launch, 2, 100, CellKind.BF16) for launch in program_of(other, 2))
    assert steps == pytest.approx(window_bytes(other, 2, 100, CellKind.BF16).total, abs=100)


def test_kernels_belong_to_the_call_in_front_of_their_marker() -> None:
    events = [
        ("a", 1.0),
        (MARKER, 0.5),
        (f"void at::{MARKER}(long)", 0.5),
        ("Memcpy HtoD", 9.0),
        ("b", 2.0),
        ("c", 3.0),
    ]
    assert split_at_markers([*events, (MARKER, 0.5)], 3) == [[("a", 1.0)], [], [("b", 2.0), ("c", 3.0)]]
    with pytest.raises(EngineError, match="saw 2 of 3 calls end"):
        split_at_markers(events, 3)


def test_times_are_medians_over_windows_and_averages_over_layers(model: DeviceModel) -> None:
    program = program_of(model, 1)

    def window(scale: float) -> list[list[tuple[str, float]]]:
        """A kernel of 2 us in each launch and a second one in the delta rule, of 8 us in layer 0."""
        found = []
        for launch in program:
            second = [("rule", (8.0 if launch.layer == 0 else 2.0) * scale)] if launch.step == "delta: rule" else []
            found.append([("kernel", 2.0 * scale), *second])
        return found

    ops = summed(model, program, [window(1.0), window(50.0), window(1.0)], (1, 50), 1000.0)
    by_name = {(op.kind, op.step): op for op in ops}
    rule = by_name["delta", "delta: rule"]  # layers 0 and 2; layer 1 has n-grams
    assert (rule.calls, rule.kernels, rule.microseconds) == (2, 2, 7.0)
    assert rule.share == pytest.approx(rule.moved_bytes / 1000e9 * 1e6 / 7.0)
    route = by_name["attention", "experts: route"]
    assert (route.calls, route.kernels, route.microseconds, route.share) == (1, 1, 2.0, None)


def test_every_op_of_a_small_model_is_checked() -> None:
    assert check_ops(CPU) > 50
    assert not roads.is_reference_on("cuda")  # forced inside only


def test_a_wrong_op_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., None] = walk.stream_gates

    def wrong(*arguments: Any) -> None:
        right(*arguments)
        mixed = arguments[-1]
        if not roads.is_reference_on("cuda"):  # as if only our kernel were wrong
            mixed.plain.mul_(1.02)

    monkeypatch.setattr(walk, "stream_gates", wrong)
    with pytest.raises(
        EngineError, match=r"behind .*delta: in.* of a layer of kind delta the buffer 'stored delta' is"
    ):
        check_ops(CPU)


def test_a_result_that_is_no_number_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(synthetic_config(1, True), SyntheticForm(), CPU)
    stages = [window_ops._stage(model) for _ in range(2)]
    monkeypatch.setattr(window_ops, "GATE_BUFFERS", ("streams",))
    window_ops._compare(*stages, "nothing")
    stages[0].workspace.held["streams"][0] = float("nan")
    with pytest.raises(EngineError, match="behind nothing the buffer 'streams' is off by nan"):
        window_ops._compare(*stages, "nothing")


def test_ops_are_those_of_the_window_that_is_decoded_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without filters: one launch chooses greedy tokens, not eight."""
    timed: list[list[Any]] = []

    def profile_each(calls: list[Callable[[], None]]) -> list[list[tuple[str, float]]]:
        timed.append(calls)
        for call in calls:
            call()
        return [[("a kernel", 1.0)] for _ in calls]

    asked: list[Variant] = []
    launches = Stage.launches

    def noting(stage: Stage, variant: Variant, bucket: int) -> Program:
        asked.append(variant)
        return launches(stage, variant, bucket)

    monkeypatch.setattr(conversations, "GATE_WINDOWS", 1)
    monkeypatch.setattr(window_ops, "profile_each", profile_each)
    monkeypatch.setattr(Stage, "launches", noting)
    model = make_model(synthetic_config(1, True), SyntheticForm(), CPU)
    ops = measure_ops(model, slots=1, context=20, rounds=1, copy_gb_per_s=100.0)
    assert set(asked) == {Variant.UNFILTERED_WINDOW}
    assert sum(op.calls for op in ops) == len(timed[0])
