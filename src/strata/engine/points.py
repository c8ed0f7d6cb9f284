"""Which checkpoints of a conversation are worth keeping. Pure integers: positions in rising order."""

from collections.abc import Sequence

MOST_POINTS = 4


def superfluous_point(positions: Sequence[int]) -> int | None:
    """The index of the checkpoint to give up, or None while there are few enough.

    The last one always stays: the next prompt of a conversation parts from this one near its end. Of the others that
    goes which leaves the smallest gap, so that what is kept lies evenly over the text.
    """
    if len(positions) <= MOST_POINTS:
        return None
    bounds = [0, *positions]
    return min(range(len(positions) - 1), key=lambda index: bounds[index + 2] - bounds[index])
