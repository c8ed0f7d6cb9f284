"""`strata kernels` says what is compiled, and why nothing can be where there is no card."""

from pathlib import Path

import pytest

from strata.cli.app import run
from strata.engine.compile_share import CompileRequest
from strata.hardware import GpuFacts, read_gpus
from strata.settings import EngineSettings


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


@pytest.mark.parametrize(
    ("arguments", "are_used"),
    [([], True), (["--dependent-launches"], True), (["--no-dependent-launches"], False)],
)
def test_a_setting_that_is_on_can_be_switched_off(
    arguments: list[str], are_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def folder_of(settings: EngineSettings) -> Path:
        seen.append(settings.dependent_launches)
        return tmp_path

    monkeypatch.setattr("strata.cli.kernels.kernel_cache_folder", folder_of)
    assert run(["kernels", *arguments]) == 0
    assert seen == [are_used]


@pytest.mark.skipif(bool(read_gpus()), reason="there is a GPU")
def test_without_a_card_nothing_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "--precompile"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: --precompile does not work here, kernels are compiled for a card: torch ")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_cache_that_is_no_folder_is_refused(
    is_there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    place = str(file) if is_there else ""
    assert run(["kernels", "--kernel-cache", place]) == 2
    assert f"setting kernel_cache: {place!r} is no folder" in capsys.readouterr().err


def test_a_model_whose_kernels_are_not_asked_for_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "--model", "nosuch"]) == 2
    assert "--precompile" in capsys.readouterr().err


def test_what_was_compiled_is_marked_so_that_a_start_need_not_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = GpuFacts("a card", 80 << 30, 79 << 30, (9, 0))
    asked: list[tuple[CompileRequest, int]] = []

    def compile_all(request: CompileRequest, processes: int, _: object) -> int:
        asked.append((request, processes))
        return 74

    for module in ("strata.build", "strata.cli.kernels"):
        monkeypatch.setattr(f"{module}.read_gpus", lambda: (card,))
    monkeypatch.setattr("strata.cli.kernels.precompile", compile_all)
    assert run(["kernels", "--precompile", "--kernel-cache", str(tmp_path), "--slots", "3"]) == 0
    assert "74 kernels of this model are compiled" in capsys.readouterr().out
    ((request, processes),) = asked
    assert (request.slots, request.card, request.cache) == (3, 0, tmp_path)
    assert processes >= 1
    assert len(list(tmp_path.glob("complete-*"))) == 1
