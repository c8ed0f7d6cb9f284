"""Greedy acceptance keeps the longest run of right drafts."""

import pytest

from strata.speculation.acceptance import accept_greedy


@pytest.mark.parametrize(
    "drafts,verified,accepted",
    [
        ([], [7], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 9, 3, 4], 1),  # a right draft after a wrong one does not stand
        ([1, 2, 3], [9, 2, 3, 4], 0),
    ],
)
def test_the_longest_right_run_stands(drafts: list[int], verified: list[int], accepted: int) -> None:
    assert accept_greedy(drafts, verified) == accepted


def test_every_row_of_the_window_must_be_verified() -> None:
    with pytest.raises(ValueError, match="2 drafts need 3 verified tokens, not 2"):
        accept_greedy([1, 2], [1, 2])
