"""`strata bench kernels` prints a table, writes JSON, and refuses what it cannot measure."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from strata.bench.window_ops import OpTime
from strata.cli.app import run
from strata.cli.bench_card import show_ops
from strata.cli.bench_kernels import doubled_up_to
from strata.native import library

SMALL = ["--hidden", "128", "--width", "64", "--mib", "1", "--rounds", "1", "--threads", "1"]


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_it_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernels.json"
    assert run(["bench", "kernels", "--cpu", *SMALL, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert all(code in printed for code in ("code2", "code4", "code8", "ratio"))
    assert len(json.loads(file.read_text())["speeds"]) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (SMALL, "give --cpu or --gpu"),
        (["--cpu", "--gpu"], "give --cpu or --gpu"),
        (["--cpu", "--width", "65"], "multiples of 64"),
        (["--gpu", "--layers", "0"], "--layers 0 does not work"),
        (["--gpu", "--slots", "40"], "--slots 40 does not work; a whole number from 1 to 32 does"),
        (["--gpu", "--rounds", "0"], "--rounds 0 does not work"),
    ],
)
def test_what_it_cannot_measure_is_a_mistake(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "kernels", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_is_measured_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "kernels", "--gpu"]) == 2
    assert "torch sees none here: give --cpu" in capsys.readouterr().err


def test_ops_of_a_card_are_a_table_by_kind_of_layer(capsys: pytest.CaptureFixture[str]) -> None:
    ops = [
        OpTime("delta", "delta: rule", 9, 1, 2.5, 3.1e6, 0.3),
        OpTime("delta", "experts: route", 9, 2, 4.0, 0, None),
        OpTime("window", "head", 1, 1, 170.0, 675e6, 0.92),
    ]
    facts = {"card": "a card", "slots": 1, "context": 30000, "layers": 12, "rounds": 7}
    show_ops({**facts, "checked_ops": 60, "copy_gb_per_s": 4300.0}, ops, Console(width=80, highlight=False))
    out = capsys.readouterr().out
    for words in ("4,300 GB/s", "60 ops of a small model agree", "58.5", "delta: rule", "3.10", "0.30", "675.00"):
        assert words in out


def test_thread_counts_double_up_to_what_there_is() -> None:
    assert [doubled_up_to(most) for most in (1, 2, 6, 16)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8, 16)]
