"""`strata bench decode` runs without a card only where it says that nothing real is measured."""

import json
from pathlib import Path

import pytest
import torch

from strata.bench import decode as measuring
from strata.cli.app import run

QUICK = ["--tiny", "--layers", "1", "--context", "20", "--slots", "1", "--rounds", "1", "--windows", "1"]
no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")


@no_card
def test_a_tiny_model_runs_without_a_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "GATE_WINDOWS", 1)
    monkeypatch.setattr(measuring, "PROFILED_WINDOWS", 1)
    file = tmp_path / "decode.json"
    assert run(["bench", "decode", *QUICK, "--profile", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "these numbers measure nothing real" in out
    assert "experts: route" in out
    (speed,) = json.loads(file.read_text())["speeds"]
    assert (speed["context"], speed["slots"], speed["share"]) == (20, 1, None)


@no_card
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "torch sees none here: --tiny tries it without"),
        (["--tiny", "--layers", "0"], "--layers 0 does not work; a whole number from 1"),
        (["--tiny", "--slots", "1", "--slots", "33"], "--slots 33 does not work"),
        (["--tiny", "--context", "1.5"], "1.5"),
        (["--tiny", "--rounds", "0"], "--rounds 0 does not work"),
        (["--tiny", "--experts-bits", "5"], "--experts-bits 5 does not work; 2.25 (Q2_0), 4.5 (Q4_0)"),
        (["--tiny", "--dense-bits", "x"], "x"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "decode", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
