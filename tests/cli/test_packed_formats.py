"""`strata inspect` prints what a weight takes after packing, and marks what grows."""

import json
from pathlib import Path

import pytest

from strata.cli.inspect import inspect
from strata.cli.model_report import make_report, packed_formats
from strata.cli.synth import synth
from strata.settings import EngineSettings


@pytest.fixture(scope="module")
def fp8_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "fp8"
    synth("qwen3_moe", directory, fields=["vocab_size=8192"], dtype="fp8", fp8_block=32)
    return directory


def test_packed_bits_are_shown(fp8_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(fp8_model)
    assert "F8_E4M3 8.00 bits a weight, 8.25 in memory as fp8" in " ".join(capsys.readouterr().out.split())


def test_packed_bits_are_in_the_json(fp8_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(fp8_model, as_json=True)
    (packed,) = json.loads(capsys.readouterr().out)["packed"]
    assert packed["name"] == "F8_E4M3"
    assert packed["grows"] is False


def test_plain_floats_are_not_mentioned(tiny_model: Path) -> None:
    assert packed_formats(make_report(tiny_model, None, EngineSettings())) == []
