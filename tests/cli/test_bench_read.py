"""`strata bench read` runs without a card only where it says that nothing real is measured."""

import json
from pathlib import Path

import pytest
import torch

from strata.cli.app import run

QUICK = ["--tiny", "--layers", "1", "--chunk", "64", "--tokens", "70", "--rounds", "1"]
no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")


@no_card
def test_a_tiny_model_runs_without_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "read.json"
    asked = ["--cache", "0,100", "--kv-kind", "k8v4", "--profile", "--json", str(file)]
    assert run(["bench", "read", *QUICK, *asked]) == 0
    out, err = capsys.readouterr()
    assert err == "reading with 2 cache sizes; slow without a card\n"
    assert "these numbers measure nothing real" in out
    assert "experts: gate, up" in out and "keys and values k8v4" in out
    none, everything = json.loads(file.read_text())["speeds"]
    assert (none["cache"], none["tokens"], none["chunk"], none["copy_share"]) == (0, 70, 64, None)
    assert none["sent_bytes"] > 0 == everything["sent_bytes"]
    assert {part["step"] for part in none["parts"]} >= {"embed", "delta: rule", "experts: combine"}


@no_card
def test_follow_ups_are_measured_instead_of_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "turns.json"
    turns = ["--follow-up", "3", "--follow-up", "5", "--held", "70", "--cache", "0,100"]
    assert run(["bench", "read", *QUICK, *turns, "--json", str(file)]) == 0
    assert "1 turns behind 70 tokens" in capsys.readouterr().out
    told = json.loads(file.read_text())
    assert told["speeds"] == []
    assert [(each["cache"], each["fresh"]) for each in told["follow_ups"]] == [(0, 3), (0, 5), (100, 3), (100, 5)]
    assert told["follow_ups"][0]["share"] is None and told["follow_ups"][2]["wanted_seconds"] == 0.2


@no_card
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "torch sees none here: --tiny tries it without"),
        (["--cache", "0,101"], "--cache 0,101 does not work; whole percents with commas do"),
        (["--chunk", "100"], "--chunk 100 does not work; a multiple of 64"),
        (["--tokens", "0"], "--tokens 0 does not work; a whole number from 1"),
        (["--step", "row"], "--step row does not work; layer, tile and layer,tile do"),
        (["--rounds", "0"], "--rounds 0 does not work"),
        (["--held", "0", "--follow-up", "1"], "--held 0 does not work"),
        (["--follow-up", "231425"], "--follow-up 231425 does not work; behind 30,720 tokens"),
        (["--json", "nosuch/x.json"], "nosuch/x.json cannot be written"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "read", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
