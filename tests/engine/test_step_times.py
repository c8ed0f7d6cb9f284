"""A profile's sums, shares and lines follow from the times that were added; a window is run once, in order."""

import time

import pytest
import torch

from strata.engine.step_times import StepTimes, run_timed
from strata.models.device.launches import Launch


def program(ran: list[str], pause: float = 0.0) -> list[Launch]:
    """Two delta layers and one of attention, with a step before and behind them."""

    def launch(layer: int | None, kind: str, step: str) -> Launch:
        def run() -> None:
            ran.append(f"{layer} {step}")
            time.sleep(pause if step == "rows" else 0.0)

        return Launch(layer, kind, step, run)

    return [
        launch(None, "window", "begin"),
        *(launch(layer, "delta", step) for layer in (0, 1) for step in ("down", "rows")),
        launch(2, "attention", "attend"),
        launch(None, "window", "head"),
    ]


def test_averages_are_over_layers_and_windows() -> None:
    times = StepTimes()
    times.add_window(program([]), [1, 10, 100, 20, 200, 5, 3])
    times.add_window(program([]), [3, 30, 300, 40, 400, 7, 5])
    found = {(step.kind, step.step): (step.microseconds, step.times_a_window) for step in times.steps()}
    assert found == {
        ("window", "begin"): (2, 1),
        ("delta", "down"): (25, 2),
        ("delta", "rows"): (250, 2),
        ("attention", "attend"): (6, 1),
        ("window", "head"): (4, 1),
    }
    assert (times.windows, times.layers) == (2, {"delta": 2, "attention": 1})


def test_the_table_has_a_line_for_each_kind_and_step_with_its_share() -> None:
    times = StepTimes()
    times.add_window(program([]), [5, 10, 100, 20, 200, 60, 5])
    lines = times.as_lines()
    assert lines[0] == "1 windows outside graphs; 400 us a window in their steps"
    assert any(line.startswith("delta ") and "165.0 us a layer, 2 of them" in line for line in lines)
    assert any("rows" in line and "150.0 us x  2.0   75.0 %" in line for line in lines)
    assert len(lines) == 1 + 3 + 5


def test_a_program_that_has_other_launches_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        StepTimes().add_window(program([]), [1.0])


def test_every_launch_runs_once_in_order_and_has_its_own_time() -> None:
    ran: list[str] = []
    times = StepTimes()
    run_timed(program(ran, pause=0.02), times, torch.device("cpu"))
    assert ran == ["None begin", "0 down", "0 rows", "1 down", "1 rows", "2 attend", "None head"]
    found = {step.step: step.microseconds for step in times.steps()}
    assert found["rows"] >= 20_000
    assert found["down"] < found["rows"]


class FakeGpu:
    """Events of a card that takes 7 us for every launch, and what was asked of it in order."""

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran
        self.now = 0.0

    def event(self, *, enable_timing: bool) -> "FakeEvent":
        assert enable_timing
        return FakeEvent(self)

    def sleep(self, cycles: int) -> None:
        assert cycles > 0
        self.ran.append("wait")
        self.now += 3000.0


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = self._gpu.now
        self._gpu.now += 7.0

    def elapsed_time(self, other: "FakeEvent") -> float:
        return (other.at - self.at) / 1e3


def test_on_a_card_the_launches_of_a_layer_wait_for_each_other_and_no_time_holds_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu([])
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "_sleep", gpu.sleep)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: gpu.ran.append("end"))
    times = StepTimes()
    run_timed(program(gpu.ran), times, torch.device("cuda"))
    layers = ("None begin", "wait", "0 down", "0 rows", "wait", "1 down", "1 rows", "wait", "2 attend", "wait")
    assert gpu.ran == ["wait", *layers, "None head", "end"]
    assert [step.microseconds for step in times.steps()] == pytest.approx([7.0] * 5)
