"""`strata bench kernels` prints a table, writes JSON, and refuses what it cannot measure."""

import json
from pathlib import Path

import pytest

from strata.cli.app import run
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


def test_what_it_cannot_measure_is_a_mistake() -> None:
    assert run(["bench", "kernels", *SMALL]) == 2
    assert run(["bench", "kernels", "--cpu", "--width", "65"]) == 2


def test_thread_counts_double_up_to_what_there_is() -> None:
    assert [doubled_up_to(most) for most in (1, 2, 6, 16)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8, 16)]
