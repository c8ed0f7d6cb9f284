"""How many rows are computed together: tiles of 64 on the grid of positions for reads, multiples of 4 in products.

Knows positions only, no model. Every tile of a read goes through each layer by itself, so a row's bits depend on its
tile's rows and on the state at the tile's start, never on where the text was cut (at multiples of 64) or on who else
was in the call: the same tiles are computed with the same shapes in either case.
"""

from collections.abc import Iterator

import torch

TILE_ROWS = 64
MIN_MATRIX_ROWS = 4


def iterate_tiles(position: int, rows: int) -> Iterator[tuple[int, int]]:
    """Offsets (start, stop) of the tiles of `rows` rows that begin at absolute `position`.

    Only the first and the last tile may be shorter than 64; stop + position is a multiple of 64 for all but the last.
    """
    start = 0
    while start < rows:
        stop = min(rows, start + TILE_ROWS - (position + start) % TILE_ROWS)
        yield start, stop
        start = stop


def pad_rows(x: torch.Tensor) -> torch.Tensor:
    """x [rows, ...] with zero rows added up to a multiple of `MIN_MATRIX_ROWS`.

    The matrix library takes other paths for 1 to 3 rows than for more, and with 2 or 8 threads it hands each thread a
    part of the rows, so that 5, 6, 7, 9, 10 and 11 rows had other bits too. Multiples of 4 were alike (measured: MKL,
    AVX-512, 8 shapes, 4 to 64 rows, 1 to 8 threads).
    """
    missing = -x.shape[0] % MIN_MATRIX_ROWS
    return x if missing == 0 else torch.cat((x, x.new_zeros(missing, *x.shape[1:])))
