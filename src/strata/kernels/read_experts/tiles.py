"""Which rows of which expert a program computes: listed on the device from where each expert's places begin.

Knows no weight. A list has as many entries as programs may need; those behind the last tile are empty.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

import torch
import triton
import triton.language as tl

from strata.kernels.dependent import begin_dependent, dependent_options
from strata.kernels.read_experts import ReadExperts, ReadWork

FIELDS = tl.constexpr(3)  # of an entry: the expert, and its places of the tile: [first, last) of the work's order
EVEN_ROWS = tl.constexpr(32)  # tiles of an expert are equal but for this
AT_ONCE = 32


@triton.jit(do_not_specialize=["count", "most_tiles"], do_not_specialize_on_alignment=["starts", "chosen", "tiles"])
def list_tiles_kernel(
    starts, chosen, count, tiles, most_tiles, ROWS: tl.constexpr, CHOSEN: tl.constexpr, AT_ONCE: tl.constexpr
):  # fmt: skip
    """A program lists the tiles of one of the `count` chosen experts; the program behind them the empty entries."""
    begin_dependent()
    own = tl.program_id(0)
    number = tl.arange(0, CHOSEN)
    experts = tl.load(chosen + number, mask=number < count, other=0)
    begin = tl.load(starts + experts)
    end = tl.where(number < count, tl.load(starts + experts + 1), begin)
    before = tl.sum(tl.where(number < own, (end - begin + ROWS - 1) // ROWS, 0), axis=0)
    first = tl.sum(tl.where(number == own, begin, 0), axis=0)
    last = tl.sum(tl.where(number == own, end, 0), axis=0)
    expert = tl.sum(tl.where(number == own, experts, 0), axis=0)
    entries = (last - first + ROWS - 1) // ROWS
    share = (last - first + entries - 1) // tl.maximum(entries, 1)  # of each tile: a small last one would cost as much
    share = (share + EVEN_ROWS - 1) // EVEN_ROWS * EVEN_ROWS
    entries = entries if own < count else most_tiles - before
    for entry in range(0, entries, AT_ONCE):
        index = entry + tl.arange(0, AT_ONCE)
        start = tl.minimum(first + index * share, last)
        at = tiles + (before + index) * FIELDS
        is_there = (index < entries) & (before + index < most_tiles)
        tl.store(at, index * 0 + expert, mask=is_there)
        tl.store(at + 1, start, mask=is_there)
        tl.store(at + 2, tl.minimum(start + share, last), mask=is_there)


def list_tiles(experts: ReadExperts, work: ReadWork, most_tiles: int, rows: int) -> torch.Tensor:
    """Tiles of `rows` places of the chosen experts, in their order: int32 [most_tiles, FIELDS] on the device."""
    count = experts.chosen.numel()
    tiles = torch.empty(most_tiles, FIELDS.value, dtype=torch.int32, device=work.order.device)
    list_tiles_kernel[(count + 1,)](
        work.starts, experts.chosen, count, tiles, most_tiles,
        ROWS=rows, CHOSEN=triton.next_power_of_2(experts.addresses.numel()), AT_ONCE=AT_ONCE, num_warps=1,
        **dependent_options(),
    )  # fmt: skip
    return tiles
