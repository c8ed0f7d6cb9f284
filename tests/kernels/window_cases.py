"""Windows of several slots for tests of kernels and for tests/gpu. Knows no kernel. Everything follows from a seed."""

from collections.abc import Sequence

import torch

from strata.kernels.window_rows import WindowRows


def window_of(
    segments: Sequence[tuple[int, int]],
    bucket: int,
    room: int | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    vocabulary: int = 100,
) -> WindowRows:
    """A bucket of rows of the segments (slot, rows), one after another; what is left of `bucket` and `room` is unused.

    A segment of no rows is an unused one between others. Tokens are random, positions too.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = WindowRows.empty(bucket, room or len(segments), "cpu")
    rows.tokens.copy_(torch.randint(vocabulary, (bucket,), generator=generator))
    start = 0
    for index, (slot, count) in enumerate(segments):
        if count == 0:
            continue
        of_segment = slice(start, start + count)
        rows.slots[of_segment] = slot
        rows.positions[of_segment] = int(torch.randint(1000, (1,), generator=generator)) + torch.arange(count).int()
        rows.first_rows[of_segment] = start
        rows.segment_slots[index], rows.segment_starts[index], rows.segment_counts[index] = slot, start, count
        start += count
    assert start <= bucket
    return WindowRows(*(getattr(rows, name).to(device) for name in WindowRows.__dataclass_fields__))
