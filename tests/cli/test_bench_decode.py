"""`strata bench decode` runs without a card only where it says that nothing real is measured."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from strata.bench import conversations as measuring
from strata.bench.decode import DecodeResult, DecodeSpeed
from strata.bench.popular_routing import LawfulRouting
from strata.bench.spread import Spread
from strata.bench.window_bytes import WindowBytes
from strata.cli.app import run
from strata.cli.bench_decode import notes, show

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
    out, err = capsys.readouterr()
    assert err == "decoding 2 windows of up to 1 conversations; without a card this may take minutes\n"
    assert "these numbers measure nothing real" in out
    assert "experts: route" in out
    (speed,) = json.loads(file.read_text())["speeds"]
    assert (speed["distinct"], speed["expected"]) == (4, 4)
    assert (speed["context"], speed["slots"], speed["share"]) == (20, 1, None)


@no_card
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "torch sees none here: --tiny tries it without"),
        (["--experts-bits", "5"], "--experts-bits 5 does not work"),
        (["--json", "nosuch/x.json"], "nosuch/x.json cannot be written"),
        (["--tiny", "--layers", "0"], "--layers 0 does not work; a whole number from 1"),
        (["--tiny", "--slots", "1", "--slots", "33"], "--slots 33 does not work"),
        (["--tiny", "--context", "1.5"], "1.5"),
        (["--tiny", "--rounds", "0"], "--rounds 0 does not work"),
        (["--tiny", "--experts-bits", "5"], "--experts-bits 5 does not work; 2.25 (Q2_0), 4.5 (Q4_0)"),
        (["--tiny", "--dense-bits", "x"], "x"),
        (["--tiny", "--routing", "even"], "even"),
        (["--tiny", "--kv-kind", "q3"], "q3"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "decode", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_what_kernels_take_is_explained_under_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    spread, needed = Spread(1.0, 0.9, 1.1), WindowBytes(1, 1, 1, 1)
    layers = {"delta": {15: 8, 21: 1}, "attention": {17: 3}}
    speeds = [
        DecodeSpeed(1024, slots, spread, spread, needed, 19.0, 20.0, 0.5, 200.0, 1.4, layer_kernels=layers)
        for slots in (1, 2)
    ]
    plan = {"rounds": 5, "windows": 32}
    result = DecodeResult(speeds, 0.8, 0.95, LawfulRouting({1: 10.0, 8: 53.9}, 0.83, 0.96))
    facts = {"card": "a card", "copy_gb_per_s": 4000.0, "layers": 12, "tiny": False, "routing": "popular", "plan": plan}
    show({**facts, "experts_bits": 4.5, "dense_bits": 8.5, "kv_kind": "bf16"}, result, Console(width=80))
    out = capsys.readouterr().out
    assert "own ms" in out and " 1.400 -2.000" in out
    assert "1 slot 19.0 (20.0), 2 slots 19.0 (20.0)" in out
    assert "the hottest 25 % of a layer's experts got 80 %, the hottest 50 % 95 %" in out
    assert "by the law of strata trace synth: 1 slot 10.0, 8 slots 53.9; hottest 25 % 83 %, hottest 50 % 96 %" in out
    assert "Below 0 kernels overlap" in out
    assert "kernels of a layer, 2 slots: delta 15 (8 layers) or 21 (1 layer), attention 17 (3 layers)" in out
    assert notes([DecodeSpeed(1024, 1, spread, spread, needed, 1.0, 1.0, None, None, None)]) == []
