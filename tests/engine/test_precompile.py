"""Compiling ahead: processes share the work, a marker spares it, and what goes wrong is told or left to the stage."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata.engine import precompile as compiling
from strata.engine.compile_share import CompileRequest
from strata.engine.precompile import compile_ahead, mark_compiled, marker_of, precompile, processes_that_fit
from strata.errors import EngineError
from strata.hardware import GpuFacts
from strata.weights.opening import open_model
from tests.gpu.tiny_models import directory

GIB = 1 << 30
CARD = GpuFacts("a card", 80 * GIB, 79 * GIB, (9, 0))
FAKE = Path(__file__).parent / "fake_compiler.py"
REQUEST = CompileRequest(Path("model"), "none", 2, 0, 0, Path("unused"))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[subprocess.Popen[bytes]]]:
    """Sets which made-up process compiles; gives the list of those that are started."""

    def set_compiler(how: str) -> list[subprocess.Popen[bytes]]:
        started: list[subprocess.Popen[bytes]] = []
        start: Any = compiling._start_process

        def noting() -> subprocess.Popen[bytes]:
            started.append(start())
            return started[-1]

        monkeypatch.setattr(compiling, "COMMAND", (sys.executable, str(FAKE), how))
        monkeypatch.setattr(compiling, "_start_process", noting)
        return started

    return set_compiler


def test_all_shares_are_compiled_and_the_progress_is_told(compiler: Any) -> None:
    started = compiler("well")
    told: list[tuple[str, int, int]] = []
    assert precompile(REQUEST, 2, lambda *each: told.append(each)) == 2 * 8
    assert told == [("compiling kernels", done, 8) for done in range(9)]
    assert [process.returncode is not None for process in started] == [True, True]


def test_what_could_not_be_compiled_is_told(compiler: Any) -> None:
    compiler("badly")
    with pytest.raises(EngineError, match=r"8 steps .* could not be compiled; the first: model, share \d of 8: no"):
        precompile(REQUEST, 2)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_ends_hangs_nobody(compiler: Any, processes: int) -> None:
    compiler("dying")
    with pytest.raises(EngineError, match=r"1 steps .* the first: a process that compiled it ended"):
        precompile(REQUEST, processes)


def test_an_interrupt_ends_the_processes(compiler: Any) -> None:
    started = compiler("never")

    def interrupt(_: str, done: int, total: int) -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    # a shell starts what runs in the background with SIGINT ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            precompile(REQUEST, 2, interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [process.returncode for process in started] == [-9, -9]


def test_without_a_marker_and_with_cores_it_is_compiled_and_what_fails_is_left_to_the_stage(
    compiler: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setattr(compiling, "processes_that_fit", lambda *_: 2)
    for how in ("well", "badly", "dying"):
        started = compiler(how)
        compile_ahead(REQUEST, marker, CARD)
        assert len(started) == 2
    monkeypatch.setattr(compiling, "COMMAND", (str(tmp_path / "no such program"),))
    compile_ahead(REQUEST, marker, CARD)
    assert not marker.exists()


def test_a_marker_or_few_cores_start_no_process(compiler: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = compiler("well")
    told: list[object] = []
    monkeypatch.setattr(compiling, "processes_that_fit", lambda *_: 1)
    compile_ahead(REQUEST, tmp_path / "marker", CARD, lambda *each: told.append(each))
    monkeypatch.setattr(compiling, "processes_that_fit", lambda *_: 2)
    mark_compiled(tmp_path / "marker")
    compile_ahead(REQUEST, tmp_path / "marker", CARD, lambda *each: told.append(each))
    assert (started, told) == ([], [])


def test_the_marker_is_another_where_other_kernels_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(directory("llama"), "none")
    first = marker_of(REQUEST, source, CARD)
    assert first == marker_of(dataclasses.replace(REQUEST, model=Path("elsewhere")), source, CARD)
    assert first.parent == REQUEST.cache
    others = [
        marker_of(dataclasses.replace(REQUEST, slots=3), source, CARD),
        marker_of(dataclasses.replace(REQUEST, quantize="code4"), source, CARD),
        marker_of(dataclasses.replace(REQUEST, dependent_launches=False), source, CARD),
        marker_of(dataclasses.replace(REQUEST, has_tiers=True), source, CARD),
        marker_of(dataclasses.replace(REQUEST, waits_in_stream=True), source, CARD),
        marker_of(dataclasses.replace(REQUEST, kv_kind="q4"), source, CARD),
        marker_of(REQUEST, open_model(directory("qwen3_moe"), "none"), CARD),
        marker_of(REQUEST, source, dataclasses.replace(CARD, name="another card")),
    ]
    monkeypatch.setattr(compiling, "_version", lambda _: "another")
    others.append(marker_of(REQUEST, source, CARD))
    assert len({first, *others}) == 1 + len(others)


def test_a_folder_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    mark_compiled(tmp_path / "absent" / "marker")
    assert not (tmp_path / "absent").exists()


def test_processes_follow_from_cores_and_room() -> None:
    assert processes_that_fit(16, 100 * GIB, 100 * GIB) == 15
    assert processes_that_fit(16, 8 * GIB, 100 * GIB) == 4
    assert processes_that_fit(16, 100 * GIB, 7 * GIB) == 3
    assert processes_that_fit(1, 8 * GIB, 8 * GIB) == 1
    assert processes_that_fit(8, 0, 0) == 1
