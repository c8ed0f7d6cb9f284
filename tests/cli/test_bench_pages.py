"""`strata bench decode --kv-resident` without a card: the table, the file, and what is refused in one sentence."""

import json
from pathlib import Path

import pytest
import torch

from strata.bench import conversations, paged
from strata.cli.app import run

QUICK = ["--tiny", "--layers", "4", "--context", "100", "--rounds", "1", "--windows", "2"]
no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")


@no_card
def test_pools_are_measured_beside_all_on_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "PROFILED_WINDOWS", 1)
    monkeypatch.setattr(paged, "KEPT_WINDOWS", 2)
    report = tmp_path / "pages.json"
    assert run(["bench", "decode", *QUICK, "--kv-resident", "72,100", "--profile", "--json", str(report)]) == 0
    out, err = capsys.readouterr()
    assert err == "decoding with 2 sizes of pools; without a card this may take minutes\n"
    assert "100 tokens; sizes of keys spread by 3" in out and "attention: pages" in out
    few, all_ = json.loads(report.read_text())["speeds"]
    assert (few["slots"], few["resident"], all_["resident"]) == (1, 72, 100)
    assert 0 < few["hits"] <= all_["hits"] <= 1 and 0 < few["kept"] <= 1
    assert few["brought_bytes"] >= all_["brought_bytes"]


@no_card
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kv-resident", "half"], "--kv-resident half does not work; whole numbers with commas do"),
        (["--kv-resident", "71"], "--kv-resident 71 does not work; from the 72 cells that a row may read to the 100"),
        (["--kv-resident", "101"], "from the 72 cells that a row may read to the 100 of --context does"),
        (["--kv-resident", "80", "--kv-spread", "11"], "--kv-spread 11 does not work; a number from 0 to 10 does"),
        (["--kv-spread", "1"], "--kv-spread goes with --kv-resident"),
        (["--kv-resident", "80", "--cache", "50"], "with all experts on the card: leave out --cache"),
        (["--kv-resident", "80", "--context", "90"], "one --context at a time"),
    ],
)
def test_what_does_not_work_is_told_before_anything_is_made(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "decode", *QUICK, *arguments]) != 0
    assert words in capsys.readouterr().err
