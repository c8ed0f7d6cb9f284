"""`strata bench join`: one table, files, exit codes, and mistakes in one sentence."""

import json
from pathlib import Path

import pytest
import torch

from strata.bench.join_bench import JoinBench
from strata.cli.app import run

FAST = ["--threads", "1", "--chunk-rows", "64"]
no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")


@no_card
def test_the_shipped_model_is_measured_in_two_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "j.json", tmp_path / "j.svg"
    asked = ["--scenarios", "two_joiners", "--modes", "whole,layers", "--repeat", "1", "--scale", "0.003"]
    files = ["--json", str(file), "--picture", str(picture)]
    assert run(["bench", "join", *FAST, *asked, "--stream-tokens", "12", *files]) == 0
    out, err = capsys.readouterr()
    assert err == "running 1 scenarios in 2 modes, 1 rounds\n"
    assert "pocket on cpu: 6 slots in 1 groups, chunks of 64, max gap 100 ms" in out
    assert "two_joiners: 4 streams of 12 tokens; first 197 tokens at 0.00 s, second 98 tokens at" in out
    assert "longest pause of a stream" in out and "read alone" not in out
    told = json.loads(file.read_text())
    assert list(told["modes"]) == ["whole", "layers"]
    (joined,) = told["modes"]["layers"]["runs"]["two_joiners"]
    assert set(joined) == {"stream 1", "stream 2", "stream 3", "stream 4", "first", "second"}
    assert picture.read_text().count("stream 4") == 2


@no_card
def test_answers_that_depend_on_the_mode_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other = (lambda bench, mode: ["aaaa"]), (lambda bench, mode: [mode.name])
    for answers, code, words in ((same, 0, "all modes give the same six answers"), (other, 1, "modes give different")):
        monkeypatch.setattr(JoinBench, "answers", answers)
        assert run(["bench", "join", *FAST, "--determinism", "--modes", "whole,layers"]) == code
        assert words in capsys.readouterr().out


@no_card
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenarios", "three"], "--scenarios three: three does not work"),
        (["--modes", "pieces"], "pieces:32768 does"),
        (["--repeat", "0"], "--repeat 0 does not work"),
        (["--scale", "0"], "--scale 0 does not work"),
        (["--stream-tokens", "1"], "--stream-tokens 1 does not work"),
        (["--slots", "5"], "--slots 5 does not work: 4 streams and two joiners need 6"),
        (["--read-mode", "whole"], "--read-mode whole does not work here"),
        (["--cache", "50"], "--cache goes with --layers"),
        (["--layers", "4"], "torch sees none here: --tiny tries it without"),
        (["--layers", "4", "--cache", "101"], "--cache 101 does not work"),
        (["--layers", "2", "--tiny", "--layer-split", "2", "--devices", "cpu,cpu"], "cuts in front of layer 2"),
        (["--layers", "2", "--tiny", "--layer-split", "1"], "with devices cpu,cpu both stages are on the processor"),
        (["--layers", "2", "--model", "x"], "--model and --layers are two models"),
        (["--scenarios", "read_alone", "--picture", "x.svg"], "--picture shows the scenario two_joiners"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "join", *arguments]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
