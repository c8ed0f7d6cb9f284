"""What a machine's steps cost: a pipeline's beats, windows of groups, and files that describe a machine."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from strata.bench.simulated_machine import Machine, machine_from_file
from strata.errors import SettingsError

ONE = Machine("one", layers=4, chunk_rows=64, row_seconds=0.001, window_seconds=0.01, stream_seconds=0.002, slots=4)
TWO = replace(ONE, stages=2, groups=2, run_seconds=0.5)


def test_a_run_over_stages_takes_one_beat_more_than_it_has_chunks() -> None:
    assert TWO.chunks(0, 150) == [(0, 64), (64, 128), (128, 150)]
    assert TWO.beats(0, 150) == (64, 64, 64, 22)
    assert ONE.beats(0, 150) == (64, 64, 22)
    assert TWO.beats(64, 90) == (26, 26), "both stages do the only chunk, one behind the other"


def test_chunks_lie_on_the_grid() -> None:
    assert ONE.chunks(70, 200) == [(70, 128), (128, 192), (192, 200)]


def test_the_steps_of_a_beat_take_its_rows_and_the_first_beat_the_runs_own_cost() -> None:
    assert TWO.steps_of_beat == 2
    assert TWO.step_seconds(64) == pytest.approx(0.032)
    assert TWO.step_seconds(64, is_first_beat=True) == pytest.approx(0.032 + 0.25)


def test_groups_on_stages_take_the_time_of_one() -> None:
    alone, both = (TWO.windows_seconds(streams, is_filling=False) for streams in ([2, 0], [2, 2]))
    assert alone == both == pytest.approx(0.014)
    assert TWO.windows_seconds([2, 2], is_filling=True) == pytest.approx(0.021), "half of a window to fill the stages"


def test_groups_on_one_card_hide_the_cpu_behind_each_other() -> None:
    machine = replace(ONE, groups=2, host_stream_seconds=0.012)
    assert machine.windows_seconds([1, 0], is_filling=False) == pytest.approx(0.024)
    assert machine.windows_seconds([1, 1], is_filling=False) == pytest.approx(0.024)
    assert replace(machine, groups=1).windows_seconds([2], is_filling=False) == pytest.approx(0.038)


def test_a_file_holds_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(asdict(TWO)))
    assert machine_from_file(file) == TWO


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 3}, "has rows, which no machine has"),
        ({"layers": None}, "layers is None; a whole number from 1"),
        ({"row_seconds": -1}, "row_seconds is -1; seconds from 0"),
        ({"slots": True}, "slots is True; a whole number"),
        ({"name": ""}, "name is ''; text works"),
        ({"groups": 5}, "groups is 5 and slots 4"),
        ({"stages": 5}, "stages is 5 and layers 4"),
        ({"chunk_rows": 100}, "chunk_rows is 100; a multiple of 64 works"),
        ({"row_seconds": 0}, "take no time"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps({**asdict(ONE), **change}))
    with pytest.raises(SettingsError, match=words):
        machine_from_file(file)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is no JSON"), ("[]", "holds no fields"), ("{}", "does not say name")]
)
def test_what_is_no_machine_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "machine.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words):
        machine_from_file(file)
