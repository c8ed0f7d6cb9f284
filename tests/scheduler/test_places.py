"""Where a prompt is worth a point: on the grid, inside it, at its turns, and every so often."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from strata.scheduler.places import EVERY_ROWS, GRID, ROOT_ROWS, points_wanted


@pytest.mark.parametrize(
    ("prompt_tokens", "boundaries", "wanted"),
    [
        (0, (), ()),
        (64, (), ()),
        (65, (), (64,)),
        (1000, (), (960,)),
        (40_000, (), (16384, 32768, 39936)),
        (1000, (30, 500, 990), (448, 960)),  # the system prompt's end is too near: the first turn behind it
        (1000, (300, 990), (256, 960)),
        (5000, (2100, 4900, 4990), (2048, 4864, 4928, 4992)),
        (3000, (300, 900, 1500, 2100, 2999), (256, 2048, 2944)),  # older turns were points when they were the last
    ],
)
def test_root_last_turns_and_last_line(
    prompt_tokens: int, boundaries: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    assert points_wanted(prompt_tokens, boundaries) == wanted


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100_000), st.lists(st.integers(1, 100_000), max_size=20, unique=True))
def test_all_lie_on_the_grid_inside_the_prompt_and_a_chunk_has_few(prompt_tokens: int, boundaries: list[int]) -> None:
    inside = sorted(each for each in boundaries if each < prompt_tokens)
    wanted = points_wanted(prompt_tokens, inside)
    assert list(wanted) == sorted(set(wanted))
    assert all(0 < point < prompt_tokens and point % GRID == 0 for point in wanted)
    assert prompt_tokens - (wanted[-1] if wanted else 0) <= GRID
    assert len(wanted) <= prompt_tokens // EVERY_ROWS + 4
    gaps = [after - before for before, after in zip((0, *wanted), wanted, strict=False)]
    assert all(gap <= EVERY_ROWS for gap in gaps)
    if any(each >= ROOT_ROWS for each in inside):
        assert wanted[0] <= next(each for each in inside if each >= ROOT_ROWS)
