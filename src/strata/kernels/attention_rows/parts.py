"""How a row's cells are cut into parts, each attended to by itself before they are merged. Knows numbers only.

A row sees a run of cells: all up to its own, or those of the chosen blocks and the open tail, in rising position. Parts
begin at multiples of 32 * 2^k of that run (64 * 2^k unless cells are float32: see launches.py), with the least k for
which 128 parts suffice: a short row is spread over many programs, a long one leaves few partial sums, and where the
cuts lie depends on the row's position alone.
"""

LEAST_PART = 32  # cells, the fewest of any launch: the 2,048 that an indexed row sees are then 64 programs a key head
MOST_PARTS = 128


def doublings(seen: int, least_part: int = LEAST_PART) -> int:
    """The least k for which parts of least_part * 2^k suffice for a row that sees `seen` cells."""
    return max(0, -(-seen // (least_part * MOST_PARTS)) - 1).bit_length()


def part_size(seen: int, least_part: int = LEAST_PART) -> int:
    """Cells of each part but the last, of a row that sees `seen` cells."""
    return least_part << doublings(seen, least_part)


def most_parts(seen: int, least_part: int = LEAST_PART) -> int:
    """The most parts of any row that sees up to `seen` cells."""
    return min(MOST_PARTS, -(-seen // least_part))


def merged_parts(most_seen: int | None, least_part: int) -> int:
    """A power of two that no row's parts exceed, whatever the context. most_seen: of an indexer; None without one."""
    return MOST_PARTS if most_seen is None else 1 << (most_parts(most_seen, least_part) - 1).bit_length()
