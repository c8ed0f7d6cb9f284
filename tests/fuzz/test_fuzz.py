"""Broken files of every kind end in one sentence: no crash, no hang, no allocation beyond what the file holds.

Twenty thousand are tried by `make fuzz`; these few thousand are other ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.errors import StrataError
from strata.weights.gguf import open_gguf, read_file
from tests.fuzz.cases import Subject, broken_case, read_gguf, subjects, try_case
from tests.house.source_tree import ROOT
from tests.weights.gguf_files import entry, pair, raw

EACH_RUN = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SIZES = st.one_of(st.integers(0, 70), st.sampled_from([2**31, 2**32, 2**40, 2**60, 2**63, 2**64 - 1]))


@pytest.mark.parametrize("part", range(4))
def test_files_with_random_damage_are_read_or_refused(tmp_path: Path, part: int) -> None:
    refused = 0
    for number in range(500):
        subject, data = broken_case(number, seed=1000 + part)
        refused += try_case(subject, data, tmp_path, measure=number % 10 == 0)
    assert 200 < refused < 500  # damage that is always or never noticed tests nothing


def test_the_files_that_are_broken_are_good_ones(tmp_path: Path) -> None:
    for subject in subjects():
        if subject.read is read_gguf:
            assert not try_case(subject, subject.data, tmp_path)


@EACH_RUN
@given(data=st.binary(max_size=300))
def test_any_bytes_behind_the_magic_are_refused_or_read(tmp_path: Path, data: bytes) -> None:
    subject = Subject("bytes", b"", 0, lambda path: [open_gguf(path), None][1])
    try_case(subject, b"GGUF\3\0\0\0" + data, tmp_path, measure=True)


@EACH_RUN
@given(
    names=st.lists(st.sampled_from(["a", "b", "general.alignment", "split.count", "\ud7ff", ""]), max_size=3),
    kind=st.integers(0, 14),
    value=st.binary(max_size=24),
    tensors=st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(SIZES, max_size=5), st.integers(0, 45), SIZES), max_size=3
    ),
    data=st.binary(max_size=200),
)
def test_headers_of_any_shape_are_refused_or_read(
    tmp_path: Path,
    names: list[str],
    kind: int,
    value: bytes,
    tensors: list[tuple[str, list[int], int, int]],
    data: bytes,
) -> None:
    path = tmp_path / "m.gguf"
    path.unlink(missing_ok=True)
    raw(path, [pair(name, kind, value) for name in names], [entry(*tensor) for tensor in tensors], data)
    try:
        file = read_file(path)
    except StrataError as refusal:
        assert "\n" not in str(refusal)
        return
    for tensor in file.tensors.values():
        assert 0 <= tensor.begin < tensor.end <= path.stat().st_size
        assert tensor.end - tensor.begin <= path.stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="memory limits are set as Linux has them")
def test_the_long_run_works_under_its_limits() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--cases", "50", "--seed", "7"],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=f"{ROOT / 'src'}:{ROOT}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("50 broken files")
