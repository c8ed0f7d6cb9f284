"""`strata kernels` says what is compiled, and why nothing can be where there is no card."""

from pathlib import Path

import pytest

from strata.cli.app import run
from strata.hardware import read_gpus


def test_an_empty_folder_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "--kernel-cache", str(tmp_path)]) == 0
    assert "holds no kernels" in capsys.readouterr().out


def test_kernels_are_listed_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("a", "b"):
        (tmp_path / key).mkdir()
        (tmp_path / key / "gates_kernel.cubin").write_bytes(bytes(1 << 20))
    assert run(["kernels", "--kernel-cache", str(tmp_path)]) == 0
    out = capsys.readouterr().out.replace("\n", " ")
    assert "2 compiled kernels in 2.0 MiB" in out
    assert "2 x gates_kernel" in out


@pytest.mark.skipif(bool(read_gpus()), reason="there is a GPU")
def test_without_a_card_nothing_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "--precompile"]) == 2
    assert "torch sees none" in capsys.readouterr().err
