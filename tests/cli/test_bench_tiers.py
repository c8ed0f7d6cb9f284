"""`strata bench decode --cache` without a card: the table, the files, and what is refused in one sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

from strata.bench import conversations
from strata.bench.spread import Spread
from strata.bench.tier_counts import WindowCounts
from strata.bench.tier_formula import TierBytes, TierRates
from strata.bench.tiers import TierSpeed
from strata.cli.app import run
from strata.cli.bench_tiers import picture, show
from strata.native import library

QUICK = ["--tiny", "--layers", "1", "--context", "20", "--rounds", "1", "--windows", "1", "--threads", "1"]
no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
RATES = TierRates(4000, 45, 50, 100, 105, 127, 40)


@no_card
@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
@pytest.mark.parametrize("wait", [[], ["--expert-wait", "stream"]])
def test_cache_sizes_are_measured_one_after_another(
    wait: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "GATE_WINDOWS", 1)
    monkeypatch.setattr(conversations, "PROFILED_WINDOWS", 1)
    report, drawn = tmp_path / "tiers.json", tmp_path / "tiers.svg"
    files = ["--json", str(report), "--picture", str(drawn)]
    assert run(["bench", "decode", *QUICK, "--cache", "0,100", "--pcie-share", "0.5", "--profile", *files, *wait]) == 0
    out, err = capsys.readouterr()
    assert err == "decoding with 2 cache sizes; without a card this may take minutes\n"
    assert "these numbers measure nothing real" in out
    planned = "experts: plan" if wait else "experts: route, plan"
    for step in (planned, "experts: rows", "experts: collect"):
        assert step in out
    none, every, whole = json.loads(report.read_text())["speeds"]
    assert (none["counts"]["in_place"], none["counts"]["on_cpu"], none["hit_rate"]) == (2, 2, 0)
    assert (none["counts"]["waited_us"] is None) == bool(wait)
    assert (every["hit_rate"], every["is_planned"], whole["is_planned"]) == (1, True, False)
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")


@no_card
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cache", "0,101"], "--cache 0,101 does not work; whole percents with commas do"),
        (["--cache", "half"], "--cache half does not work"),
        (["--cache", ""], "--cache  does not work"),
        (["--cache", "50", "--pcie-share", "1.5"], "--pcie-share 1.5 does not work; a number from 0 to 1 does"),
        (["--cache", "50", "--threads", "0"], "--threads 0 does not work"),
        (["--groups", "2"], "--groups goes with --cache"),
        (["--cache", "50", "--groups", "two"], "--groups two does not work; numbers from 1 to 4 do: 1,2"),
        (["--cache", "50", "--groups", "1,2"], "--groups 2 does not work with --slots 1; a multiple of it does"),
        (["--cache", "50", "--context", "20", "--context", "30"], "one --context at a time"),
        (["--cache", "50", "--picture", "nosuch/x.svg"], "--picture nosuch/x.svg cannot be written"),
        (["--swaps"], "--swaps goes with --cache"),
        (["--pcie-share", "0"], "--pcie-share goes with --cache"),
        (["--expert-wait", "stream"], "--expert-wait goes with --cache"),
        (["--cache", "50", "--expert-wait", "often"], "spin"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    for model in ([], ["--tiny"]):  # that there is no card is told where nothing else is wrong
        assert run(["bench", "decode", *model, "--layers", "1", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


def speed(cache: int, is_planned: bool, milliseconds: float, hit_rate: float) -> TierSpeed:
    """A row of the table for 48 layers of 10 experts."""
    spread, rate = Spread(milliseconds, 0.9 * milliseconds, 1.1 * milliseconds), 1e3 / milliseconds
    misses = 480 * (1 - hit_rate)
    counts = WindowCounts(48, 480 * hit_rate, 0.3 * misses, 0.7 * misses, 48, 95.0, 12.0, 30.0, 0)
    needed = TierBytes(10**9, counts.hits * 2.76e6, misses * 2.76e6)
    return TierSpeed(
        cache, is_planned, 1, milliseconds, spread, Spread(rate, 0.9 * rate, 1.1 * rate), counts, needed, 5.0
    )


def facts(card: str | None) -> dict[str, Any]:
    """What a report says of the run."""
    plan = {"rounds": 5, "windows": 32, "context": 1024, "with_swaps": False, "is_popular": True}
    made = {"layers": 48, "tiny": False, "routing": "popular", "experts_bits": 4.5, "dense_bits": 8.5}
    made |= {"kv_kind": "bf16"}
    rates = {name: getattr(RATES, name) for name in RATES.__dataclass_fields__}
    run_facts = {"plan": plan, "rates": rates, "making_seconds": 41.3, "threads": 16, "notice": None}
    return {"card": card, "copy_gb_per_s": 4000.0, **made, **run_facts}


def test_the_table_fits_80_columns_and_says_what_planning_costs(capsys: pytest.CaptureFixture[str]) -> None:
    speeds = [speed(0, True, 12.5, 0.0), speed(100, True, 2.5, 1.0), speed(100, False, 2.26, 1.0)]
    show(facts("a card"), speeds, Console(width=80))
    out = capsys.readouterr().out
    assert "planning with a seat for every expert takes 5.0 us a layer" in out
    assert "0.400" in out  # of the limit: 5 ms of 12.5
    assert "0.905" in out  # of reading main memory: 95 of 105
    assert "both at once D 127.0, of it 40.0 in place" in out
    rows = [line for line in out.splitlines() if "%" in line[:6] or line.startswith("whole")]
    assert len(rows) == 6
    assert all(len(line) <= 80 for line in rows)


def test_groups_stand_beside_one_group_and_their_limit(capsys: pytest.CaptureFixture[str]) -> None:
    one = replace(speed(50, True, 4.0, 0.5), slots=2, tokens_per_second=Spread(500.0, 490.0, 510.0))
    two = replace(
        one,
        groups=2,
        window_ms=Spread(3.2, 3.1, 3.3),
        tokens_per_second=Spread(625.0, 600.0, 650.0),
        side_by_side_ms=2.4,
    )
    show(facts("a card"), [one, two], Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.split()[-1:] == ["36.0"]]
    # 48 layers of 30 us of waiting in 4 ms; 2 tokens in 2.4 ms; 2.4 of 3.2
    assert row == ["50", "%", "2", "50.0", "500", "2", "625", "1.250", "833", "0.750", "36.0"]
    assert any(line.split()[2:3] == ["1+1"] for line in lines)
    drawn = picture(facts("a card"), [one, two], RATES)
    assert "2 conversations in 2 groups" in drawn and "2 conversations; dashed: the formula" in drawn


def test_the_picture_leaves_the_limit_out_where_nothing_was_measured() -> None:
    speeds = [speed(0, True, 12.5, 0.0), speed(100, False, 2.26, 1.0)]
    with_limit, without = picture(facts("a card"), speeds, RATES), picture(facts(None), speeds, None)
    assert "stroke-dasharray" in with_limit and "1 conversation; dashed: the formula" in with_limit
    assert "stroke-dasharray" not in without and "these numbers measure nothing real" in without
    assert with_limit.count("<circle") == 1  # sizes that were planned
