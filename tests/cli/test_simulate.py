"""`strata simulate` shows the published table beside the simulated one, and says when something went wrong."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from strata.bench.agents import Findings
from strata.bench.simulation import PUBLISHED, TWO_5090
from strata.cli import simulate
from strata.cli.app import run


def test_the_table_has_every_mode_beside_what_was_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "s.json", tmp_path / "s.svg"
    assert run(["simulate", "--json", str(file), "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "2x5090, simulated: 2 stages, 6 slots in 2 groups" in out
    assert max(map(len, out.splitlines())) <= 100
    (line,) = [line for line in out.splitlines() if "pieces:32768" in line and "4.200" in line]
    assert "yes" in line and "%" in line, "the longest pause"
    assert "largest error beside what was published: 1" in out
    told = json.loads(file.read_text())
    assert list(told["modes"]) == ["whole", "pieces:32768", "pieces:16384", "layers"]
    assert len(told["published"]) == len(PUBLISHED) and told["machine"] == asdict(TWO_5090)
    assert picture.read_text().count("stream 4") == 4


def test_another_machine_comes_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(asdict(replace(TWO_5090, name="mine", stages=1, groups=1, link_seconds=0.5))))
    assert run(["simulate", "--machine", str(file), "--modes", "whole,layers", "--max-gap-ms", "200"]) == 0
    out = capsys.readouterr().out
    assert "mine, simulated: 1 stages" in out and "published" not in out


def test_hours_of_agents_end_well_or_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hours.json"
    good = Findings(bound=0.11, requests=7, ended=7)
    for found, code in ((good, 0), (replace(good, gaps_over=2), 1)):
        monkeypatch.setattr(simulate, "live", lambda *_, found=found: found)
        assert run(["simulate", "--hours", "3", "--seed", "4", "--json", str(file)]) == code
        out = capsys.readouterr().out
        assert "3 hours of random agents, seed 4" in out and f"gaps over the bound {found.gaps_over}" in out
        assert json.loads(file.read_text())["gaps_over"] == found.gaps_over


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--machine", "3090"], "--machine 3090 does not work; 2x5090 or a JSON file does"),
        (["--machine", "nosuch.json"], "--machine nosuch.json cannot be read"),
        (["--modes", "whole,fast"], "fast does not work; whole, pieces:N and layers do"),
        (["--hours", "0"], "--hours 0 does not work"),
        (["--hours", "2", "--picture", "x.svg"], "--picture shows scenarios, and --hours runs none"),
        (["--max-gap-ms", "-1"], "max_gap_ms"),
        (["--json", "nosuch/x.json"], "nosuch/x.json cannot be written"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
