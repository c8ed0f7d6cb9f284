"""Where a prompt is worth a point, behind which another prompt may go on. Pure: positions in, positions out.

    |  system prompt  |  older turns ...  16,384 ...  32,768 ...  |  user  | reply's start |
    0               root                 every 16,384            turn     turn         last line

All lie on the grid, where reading on gives the bits of a fresh read.
"""

from collections.abc import Sequence

GRID = 64
ROOT_ROWS = 256  # a shorter beginning is read again as fast as it is copied
EVERY_ROWS = 16_384
LAST_TURNS = 2  # the user's and the beginning of the reply


def points_wanted(prompt_tokens: int, boundaries: Sequence[int]) -> tuple[int, ...]:
    """Rising multiples of 64 inside the prompt. boundaries: rising positions at which its turns begin; empty: unknown.

    The first boundary behind enough rows is the root, which other conversations may share: mostly the system prompt's
    end. Where the last turns begin a changed question parts from this prompt. The last line serves whatever is added.
    """
    last_line = line_before(prompt_tokens - 1)
    lines = [line_before(position) for position in boundaries]
    root = next((line for line in lines if line >= ROOT_ROWS), last_line)
    wanted = {root, *lines[-LAST_TURNS:], *range(EVERY_ROWS, last_line, EVERY_ROWS), last_line}
    return tuple(sorted(line for line in wanted if 0 < line <= last_line))


def line_before(position: int) -> int:
    """The last multiple of 64 at or in front of a position."""
    return position // GRID * GRID
