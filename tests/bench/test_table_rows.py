"""What a token's rows of tables in files take: measured of a model that has some, told in a sentence."""

import json
from pathlib import Path

import pytest

from strata.bench import table_rows
from strata.bench.table_rows import TableSpeed, in_words, measure_tables
from strata.cli.app import run
from strata.native import library
from strata.weights.opening import open_model
from tests.gpu.tiny_models import directory

needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")


@needs_library
def test_all_tables_of_a_model_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "TOKENS", 3)
    found = measure_tables(open_model(directory("qwen4_exp"), "none"))
    assert found is not None
    assert (found.rows, found.waited) == (8, 0.0), "two layers of four heads; the files were just written"
    assert 0 < found.again_us < 1e6 and found.first_us > 0


def test_a_model_without_tables_is_not_measured() -> None:
    assert measure_tables(open_model(directory("llama"), "none")) is None


def test_the_sentence_tells_of_the_disk_only_where_it_was_asked() -> None:
    end = "30 us from the system's memory."
    assert in_words(TableSpeed(16, 31.0, 0.0, 30.2)).endswith(f"were read from the files in {end}")
    assert in_words(TableSpeed(16, 410.0, 0.93, 30.2)).endswith(f"in 410 us with 93% of them from the disk, {end}")


@needs_library
def test_doctor_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    path: Path = directory("qwen4_exp")
    assert run(["doctor", "--model", str(path), "--limit-s", "0.001", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["table_rows"]["rows"] == 8
