"""`strata doctor` says what this PC gives and what strata would do here, with a card and without one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strata.bench import doctor as examining
from strata.bench.ceilings import CardRates, Ceilings, PinProbe
from strata.cli import doctor as command
from strata.cli import model_report
from strata.cli.app import run
from strata.cli.synth import synth
from strata.hardware import GpuFacts, read_hardware
from strata.kernels.compiled import CachedKernels

GIB = 1 << 30
CARD = GpuFacts("Made-up card", 24 * GIB, 23 * GIB, (8, 9), 4, 16)
NO_KERNELS = CachedKernels(Path("kernels"), (), 0)
MEASURED = Ceilings({1: 12.0, 2: 23.0}, PinProbe(8 * GIB, 2.5, False), CardRates(24.0, 22.0, 900.0, 950.0), ["more"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement, and no card."""
    monkeypatch.setattr(examining, "measure_ceilings", lambda *_: MEASURED)
    set_cards(monkeypatch)


def set_cards(monkeypatch: pytest.MonkeyPatch, *cards: GpuFacts) -> None:
    def hardware() -> Any:
        return replace(read_hardware(), gpus=cards)

    for module in (examining, model_report):
        monkeypatch.setattr(module, "read_hardware", hardware)


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["doctor", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_measures_this_pc_and_advises_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--limit-s", "0"]) == 0
    out = capsys.readouterr().out
    for words in ("processor", "memory", "versions", "torch", "strata 0."):
        assert words in out


@pytest.mark.usefixtures("quick")
def test_without_a_card_it_says_so_and_why_it_runs_anyway(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "none that torch can use" in out
    assert ". It would run on the processor with 1 thread. This PC can run it on its CPU: " in out
    assert "RAM GB/s" in out
    assert "worth using: 2" in out


@pytest.mark.usefixtures("quick")
def test_with_a_card_it_shows_the_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_cards(monkeypatch, CARD)
    assert run(["doctor", "--slots", "2", "--context", "2048"]) == 0
    out = capsys.readouterr().out
    for words in ("Made-up card: 24.0 GiB, 23.0 GiB free, compute 8.9, PCIe 4 x 16", "memory plan", "routed experts",
                  "marks to go back to", "reserve",
                  "On the card: 2 conversations of up to 2,048 tokens at once, keys and values as bf16.",
                  "what slots cost", "each: 1,000 tokens", "slots that fit",
                  "copy to it 24.0", "8.0 GiB in 2.5 s; more was not tried", "no time for"):  # fmt: skip
        assert words in out


@pytest.mark.usefixtures("quick")
def test_a_model_that_does_not_fit_on_the_card_is_refused_with_its_plan_and_runs_on_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_cards(monkeypatch, replace(CARD, free_bytes=GIB + (1 << 20)))
    synth("qwen4_exp", tmp_path / "tiny")
    found = as_json(capsys, "--model", str(tmp_path / "tiny"))
    assert found["model"]["plan"]["refusal"].startswith("this model does not fit on Made-up card")
    assert found["model"]["plan"]["left_bytes"]["card"] < 0
    assert "It would run on the processor" in found["model"]["advice"]


@pytest.mark.usefixtures("quick")
def test_json_holds_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_cards(monkeypatch, CARD)
    found = as_json(capsys)
    assert found["ceilings"]["ram_gb_per_s"] == {"1": 12.0, "2": 23.0}
    assert found["ceilings"]["threads_worth_using"] == 2
    assert found["ceilings"]["card"]["vram_copy"] == 900.0
    assert found["hardware"]["gpus"][0]["pcie_generation"] == 4
    plan = found["model"]["plan"]
    on_card = sum(part["bytes"] for part in plan["parts"] if part["place"] == "card")
    assert on_card + plan["reserve_bytes"] + plan["left_bytes"]["card"] == 23 * GIB


@pytest.mark.usefixtures("quick")
def test_budgets_are_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_cards(monkeypatch, CARD)
    plan = as_json(capsys, "--vram-gib", "2")["model"]["plan"]
    on_card = sum(part["bytes"] for part in plan["parts"] if part["place"] == "card")
    assert on_card + plan["reserve_bytes"] + plan["left_bytes"]["card"] == 2 * GIB
    assert run(["doctor", "--vram-gib", "25"]) == 2
    assert "vram_gib: 25 does not work: Made-up card has 24.0 GiB" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--limit-s", "-1"], "--limit-s -1 does not work"),
        (["--limit-s", "nan"], "--limit-s nan does not work"),
        (["--limit-s", "soon"], "soon"),
        (["--model", ""], "the path is empty"),
        (["--model", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--context", "99999999"], "99,999,999"),
        (["more"], "nothing takes 'more'"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_advice_names_threads_that_bring_nothing() -> None:
    report = model_report.make_report(command.models_shipped.default_path(), None, command.resolve({}).engine)
    wide = replace(report, config={**report.config, "hidden_size": 4096})
    found = examining.Examination(
        report.hardware, (), None, None, {}, examining.NativePaths(None, ()), NO_KERNELS, Ceilings()
    )
    found.ceilings.ram_gb_per_s.update({1: 30.0, 2: 30.1})
    said = command.advice(found, wide, command.CardAnswer(None, "the setting device is cpu"))
    assert said.startswith("The setting device is cpu. It would run on the processor with ")
    assert ("(memory gets no faster beyond 1)" in said) == (report.hardware.cpu.usable_cores > 1)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("arguments", "card", "words"),
    [
        (["--device", "cpu"], CARD, "The setting device is cpu."),
        (["--dtype", "float64"], CARD, "Dtype is float64, which only the CPU computes"),
        ([], replace(CARD, compute_capability=(7, 5)), "Made-up card has compute capability 7.5"),
    ],
)
def test_why_a_card_that_is_there_is_not_used(
    arguments: list[str],
    card: GpuFacts,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_cards(monkeypatch, card)
    found = as_json(capsys, *arguments)
    assert found["model"]["advice"].startswith(words)
    assert (found["model"]["plan"], found["model"]["runs_on_the_card"]) == (None, False)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (PinProbe(8 * GIB, 2.5, False), "Pinning the "),
        (PinProbe(1 << 20, 0.1, True), "The system pins 1.0 MiB of the "),
        (PinProbe(0, 0.0, False), " times their size."),
        (None, " times their size."),
    ],
)
def test_experts_in_main_memory_are_told_with_what_pinning_them_comes_to(
    probe: PinProbe | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(examining, "measure_ceilings", lambda *_: replace(MEASURED, pinned=probe))
    set_cards(monkeypatch, CARD)
    synth("qwen3_moe", tmp_path / "wide", fields=["moe_intermediate_size=1024", "hidden_size=512"])
    found = as_json(capsys, "--model", str(tmp_path / "wide"), "--cache-gib", "0.01")["model"]
    assert found["runs_on_the_card"]
    assert 0 < found["plan"]["expert_seats_bytes"] <= 0.01 * GIB
    assert "the card holds " in found["advice"]
    assert words in found["advice"]
    if probe is None or not probe.size:
        assert found["advice"].endswith(words)


@pytest.mark.usefixtures("quick")
def test_a_card_with_a_part_of_the_experts_is_not_used_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_cards(monkeypatch, CARD)
    monkeypatch.setattr("strata.engine.tier_loading.library.is_available", lambda: False)
    synth("qwen3_moe", tmp_path / "tiny")
    found = as_json(capsys, "--model", str(tmp_path / "tiny"), "--cache-gib", "0")["model"]
    assert not found["runs_on_the_card"]
    assert found["advice"].startswith("The card holds 0% of the experts, and the others are computed by")
