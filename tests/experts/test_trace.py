"""A trace comes back from its file as it was; every defect of a file is named, and a failed write leaves nothing."""

import json
import os
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from strata.errors import StrataError, TraceError
from strata.experts import trace as module
from strata.experts.trace import Trace, load_trace, save_trace

TRACE = Trace(
    model='a "model", ünï',
    experts=5,
    blob_bytes=(100, 200),
    ids=np.array([[[0, 4], [1, 2]], [[3, 1], [2, 0]], [[4, 0], [0, 1]]], np.int16),
    steps=np.array([0, 0, 1], np.int32),
    is_read=np.array([True, True, False]),
    conversations=np.array([0, 0, 0], np.int32),
    positions=np.array([0, 1, 2], np.int32),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.trace"
    save_trace(TRACE, path)
    return path


def same(one: Trace, other: Trace) -> bool:
    return all(np.array_equal(getattr(one, each.name), getattr(other, each.name)) for each in fields(Trace))


def test_a_trace_comes_back_as_it_was(file: Path) -> None:
    found = load_trace(file)
    assert same(found, TRACE)
    assert found.windows.tolist() == [1]
    assert [path.name for path in file.parent.iterdir()] == ["t.trace"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_other_tools_read_it_as_safetensors(file: Path) -> None:
    arrays = load_file(file)
    assert np.array_equal(arrays["ids"], TRACE.ids)
    assert arrays["is_read"].tolist() == [1, 1, 0]


def rewritten(file: Path, **changes: Any) -> Path:
    """The file with some header entries changed; None removes one. Keys with `meta_` are facts of the metadata."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name, value in changes.items():
        place, key = (header["__metadata__"], name[5:]) if name.startswith("meta_") else (header, name)
        place.pop(key, None)
        if value is not None:
            place[key] = value
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return file


IDS = {"dtype": "I16", "shape": [3, 2, 2], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"meta_format": "other"}, "does not say format strata-routing-trace-1"),
        ({"__metadata__": None}, "does not say format"),
        ({"meta_experts": "4"}, r"ids holds 4 \(row 0\); 0 to 3 works"),
        ({"meta_experts": "1"}, "ids has 2 ranks, and there are 1 experts"),
        ({"meta_experts": "0"}, "experts is '0'; a whole number from 1 to 32,768"),
        ({"meta_experts": "1e3"}, "experts is '1e3'"),
        ({"meta_experts": None}, "experts is 'None'"),
        ({"meta_model": 7}, "model is 7; it must be text"),
        ({"meta_blob_bytes": "[100]"}, "must list the bytes of 2 layers' experts"),
        ({"meta_blob_bytes": "[100, -1]"}, "blob_bytes is '-1'"),
        ({"meta_blob_bytes": "[100, true]"}, "blob_bytes is 'True'"),
        ({"meta_blob_bytes": f"[100, {(1 << 36) + 1}]"}, "a whole number from 1 to 68,719,476,736 works"),
        ({"meta_blob_bytes": "[" * 5000}, "must list the bytes"),
        ({"ids": None}, r"ids has shape None; it must be \[rows, layers, ranks\]"),
        ({"ids": IDS | {"shape": [3, 4]}}, "ids has shape"),
        ({"ids": IDS | {"shape": [3, 2, 0]}}, "each at least 1"),
        ({"ids": IDS | {"shape": [3, 1025, 2]}}, "ids has 1,025 layers; at most 1,024 are read"),
        ({"ids": IDS | {"shape": [1 << 40, 1 << 10, 2]}}, "ids is described as"),
        ({"ids": IDS | {"dtype": "I64"}}, "it must be .*I16"),
        ({"steps": {"dtype": "I32", "shape": [2], "data_offsets": [24, 32]}}, "steps is described as"),
        ({"positions": None}, "positions is described as None"),
        ({"extra": IDS}, "'extra' is not part of a routing trace"),
    ],
)
def test_a_header_that_lies_is_named(file: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        load_trace(rewritten(file, **changes))
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ids": -TRACE.ids}, r"ids holds -4 \(row 0\); 0 to 4 works"),
        ({"ids": TRACE.ids // 2}, "row 2 of ids names an expert twice in layer 1"),
        ({"steps": np.array([0, 2, 1])}, r"steps holds 1 \(row 2\); steps never fall"),
        ({"steps": np.array([-1, 0, 1])}, r"steps holds -1 \(row 0\); it must be at least 0"),
        ({"steps": np.array([0, 1, 1])}, r"is_read holds .* \(row 2\); a step is a read or a window"),
        ({"is_read": np.array([1, 1, 2])}, r"is_read holds 2 \(row 2\); 0 or 1 works"),
        ({"conversations": np.array([0, -3, 0])}, r"conversations holds -3 \(row 1\)"),
        ({"positions": np.array([0, 1, -1])}, r"positions holds -1 \(row 2\)"),
    ],
)
def test_rows_that_no_recording_gives_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "t.trace"
    save_trace(replace(TRACE, **changes), path)
    with pytest.raises(TraceError, match=words):
        load_trace(path)


def test_files_that_are_no_traces_are_refused(tmp_path: Path, file: Path) -> None:
    data = file.read_bytes()
    cases = {
        b"": "holds 0 bytes",
        b"hello, I am a text of some length": "its header would take",
        data[:40]: "is truncated: its header takes 4.. bytes, the file holds 40",
        data[:-1]: "is truncated: its header describes 63 bytes of rows, the file holds 62",
        data + b"\0": "is too long",
        (9).to_bytes(8, "little") + b"[1, 2, 3]": "must hold a JSON object",
        (9).to_bytes(8, "little") + b"\xff" * 9: "is not valid UTF-8",
        (30000).to_bytes(8, "little") + b"[" * 30000: "nested too deeply",
    }
    for number, (content, words) in enumerate(cases.items()):
        path = tmp_path / f"{number}.trace"
        path.write_bytes(content)
        with pytest.raises(TraceError, match=words):
            load_trace(path)
    os.mkfifo(tmp_path / "fifo")
    for path, words in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a directory|not a regular file"),
        (tmp_path / "fifo", "not a regular file"),
    ):
        with pytest.raises(TraceError, match=words):
            load_trace(path)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_byte_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damaged") / "t.trace"
    save_trace(TRACE, path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = load_trace(path)
    except TraceError:
        return
    assert found.ids.shape == (3, 2, 2)
    assert 0 <= found.ids.min() <= found.ids.max() < found.experts


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = tmp_path / "partial"

    def on_a_full_disk(**_: Any) -> tuple[int, str]:
        partial.touch()
        return os.open("/dev/full", os.O_WRONLY), str(partial)

    monkeypatch.setattr(tempfile, "mkstemp", on_a_full_disk)
    with pytest.raises(TraceError, match=r"t.trace cannot be written: the disk has no room; nothing was kept"):
        save_trace(TRACE, tmp_path / "t.trace")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Trace) -> list[bytes]:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_trace(TRACE, tmp_path / "t.trace")
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path, file: Path) -> None:
    for target, words in (
        (file, "exists already"),
        (tmp_path / "no" / "t.trace", "there is no folder"),
        (Path("/dev/full"), "exists already"),
        (Path("/proc/t.trace"), "nothing can be written in /proc"),
    ):
        with pytest.raises(StrataError, match=words):
            save_trace(TRACE, target)
