"""`strata bench interleave`: every mode's checks, exit codes, and mistakes in one sentence."""

import json
from pathlib import Path

import pytest
import torch

from strata.bench.interleave import Check, Interleave
from strata.cli.app import run

FAST = ["--threads", "1", "--chunk-rows", "64"]
no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")


@no_card
def test_an_interleave_that_goes_wrong_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "i.json"
    for is_good, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(Interleave, "run", lambda *_, is_good=is_good: [Check("E is first", is_good, "3 tokens")])
        assert run(["bench", "interleave", *FAST, "--json", str(file)]) == code
        out = capsys.readouterr().out
        assert "pocket on cpu: 4 slots in 1 groups, pieces of 128" in out
        assert f"layers: E is first: {'yes' if is_good else 'NO'} (3 tokens)" in out
        assert ("4 of 4 are so" if is_good else "0 of 4 are so, 4 are not") in out
        assert [each["is_good"] for each in json.loads(file.read_text())["whole, one run"]] == [is_good]


@no_card
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slots", "3"], "--slots 3 does not work; 4 or more do"),
        (["--piece", "100", *FAST], "--piece 100 does not work; a multiple of the 64 rows"),
        (["--piece", "64000", *FAST], "smaller --piece"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "interleave", *arguments]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
