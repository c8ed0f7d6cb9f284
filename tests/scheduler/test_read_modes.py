"""Runs of a prompt, what they owe the running replies, and who lets whom pass, mode by mode."""

import pytest

from strata.scheduler.read_modes import ReadMode, ReadRule, gives_way, lead_in, piece_rows, run_end, windows_owed
from strata.settings import EngineSettings

CHUNK = 512
WHOLE, LAYERS = ReadRule(ReadMode.WHOLE), ReadRule()
PIPED = ReadRule(ReadMode.WHOLE, is_piped=True)
PIECES = ReadRule(ReadMode.PIECES, piece_rows=4 * CHUNK, least_windows=0.1, most_windows=0.4)


@pytest.mark.parametrize(
    ("asked", "chunk", "rows"),
    [
        *[(1, 512, 512), (512, 512, 512), (513, 512, 1024), (16_384, 8192, 16_384), (20_000, 8192, 24_576)],
        *[(10**9, 512, 32 * 512), (32_768, 1024, 32_768), (100, 0, 0), (0, 512, 0)],
    ],
)
def test_a_piece_is_rounded_up_to_1_to_32_whole_chunks(asked: int, chunk: int, rows: int) -> None:
    assert piece_rows(asked, chunk) == rows


@pytest.mark.parametrize(
    ("rule", "position", "total", "end"),
    [
        *[(WHOLE, 0, 5000, 512), (WHOLE, 37, 5000, 512), (WHOLE, 4800, 5000, 5000), (LAYERS, 0, 5000, 512)],
        *[(PIPED, 0, 5000, 5000), (PIPED, 640, 5000, 5000)],
        *[(PIECES, 0, 5000, 2048), (PIECES, 37, 5000, 2048), (PIECES, 2048, 5000, 4096), (PIECES, 4096, 5000, 5000)],
        *[(PIECES, 0, 2048, 2048), (PIECES, 0, 2049, 2048), (ReadRule(ReadMode.PIECES), 0, 5000, 5000)],
    ],
)
def test_a_run_ends_on_the_grid_or_with_the_prompt(rule: ReadRule, position: int, total: int, end: int) -> None:
    assert run_end(rule, position, total, CHUNK) == end


def test_where_windows_come_between_layers_a_chain_of_stages_reads_all_in_one_run() -> None:
    ends = [run_end(rule, 0, 5000, CHUNK, reads_runs=True) for rule in (LAYERS, WHOLE, PIPED, PIECES)]
    assert ends == [5000, 512, 5000, 2048]


def test_half_of_a_run_is_owed_unless_the_user_says_otherwise() -> None:
    assert [windows_owed(rule, 0.5) for rule in (WHOLE, PIPED, LAYERS)] == [0.25, 0.0, 0.0]
    said = [windows_owed(ReadRule(mode, decode_share=2.0), 0.5) for mode in ReadMode]
    assert said == [1.0, 1.0, 1.0]
    assert windows_owed(ReadRule(ReadMode.WHOLE, is_piped=True, decode_share=2.0), 0.5) == 0.0


@pytest.mark.parametrize(("seconds", "owed"), [(0.01, 0.1), (0.2, 0.1), (0.5, 0.25), (0.8, 0.4), (10.0, 0.4)])
def test_what_follows_a_piece_has_a_floor_and_a_cap(seconds: float, owed: float) -> None:
    assert windows_owed(PIECES, seconds) == pytest.approx(owed)


def test_without_bounds_a_piece_is_followed_by_its_share() -> None:
    assert windows_owed(ReadRule(ReadMode.PIECES, 512), 4.0) == 2.0
    assert windows_owed(ReadRule(ReadMode.PIECES, 512, decode_share=0.0), 4.0) == 0.0


def test_a_read_behind_another_one_owes_what_that_ones_last_run_owed() -> None:
    assert lead_in(PIECES, 0.5) == 0.25
    assert lead_in(PIECES, None) == 0.0  # a window came in between
    assert [lead_in(rule, 0.5) for rule in (WHOLE, PIPED, LAYERS)] == [0.0, 0.0, 0.0]


def test_a_prompt_of_under_half_of_what_is_left_passes_at_most_twice() -> None:
    assert gives_way(LAYERS, left=1001, waiting=500, times=0, is_in_run=True)
    assert not gives_way(LAYERS, left=1000, waiting=500, times=0, is_in_run=True)
    assert [gives_way(LAYERS, 1001, 500, times, False) for times in (1, 2)] == [True, False]


@pytest.mark.parametrize(
    ("rule", "in_run", "at_its_end"),
    [(LAYERS, True, True), (PIECES, False, True), (WHOLE, False, True), (PIPED, False, False)],
)
def test_where_a_read_may_give_way(rule: ReadRule, in_run: bool, at_its_end: bool) -> None:
    assert gives_way(rule, 1000, 10, 0, is_in_run=True) is in_run
    assert gives_way(rule, 1000, 10, 0, is_in_run=False) is at_its_end


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ({}, "layers"),
        ({"piped_read_piece": 600}, "pieces"),
        ({"read_mode": "whole"}, "whole"),
        ({"read_mode": "layers", "piped_read_piece": 600}, "layers"),
    ],
)
def test_a_piece_means_pieces_unless_a_mode_was_said(said: dict, mode: str) -> None:
    assert ReadRule.of(EngineSettings(**said), CHUNK, is_piped=False).mode == mode


def test_a_rule_is_that_of_the_settings() -> None:
    said = {"piped_read_piece": 600, "piped_decode_min_ms": 50.0, "piped_decode_max_ms": 400.0, "decode_share": 0.25}
    expected = ReadRule(ReadMode.PIECES, 1024, True, 0.25, 0.05, 0.4)
    assert ReadRule.of(EngineSettings(**said), CHUNK, is_piped=True) == expected
    assert ReadRule.of(EngineSettings(), CHUNK, is_piped=False) == ReadRule()
