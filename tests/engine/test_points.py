"""Which checkpoint is given up: never the last, and what stays lies evenly."""

import pytest

from strata.engine.points import MOST_POINTS, superfluous_point


@pytest.mark.parametrize(
    ("positions", "given_up"),
    [
        ([64], None),
        ([64, 128, 192, 256], None),
        ([64, 128, 192, 256, 320], 0),
        ([512, 1024, 1536, 2048, 2112], 3),
        ([512, 1024, 1536, 3000, 3064], 0),
        ([1000, 1064, 3000, 5000, 7000], 0),
    ],
)
def test_the_one_that_leaves_the_smallest_gap_goes(positions: list[int], given_up: int | None) -> None:
    assert superfluous_point(positions) == given_up


def test_a_long_read_keeps_points_all_over_it() -> None:
    points: list[int] = []
    for position in range(512, 100_000, 512):
        points.append(position)
        index = superfluous_point(points)
        if index is not None:
            del points[index]
    gaps = [after - before for before, after in zip([0, *points], points, strict=False)]
    assert len(points) == MOST_POINTS
    assert max(gaps) < 0.6 * points[-1]
