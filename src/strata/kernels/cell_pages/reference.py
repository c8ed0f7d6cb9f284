"""Bringing blocks into the pool as it is defined, in torch on any device. Knows one layer; reads words on the host."""

import torch

from strata.kernels.cell_pages.arguments import (
    MOST_STAMP,
    NO_PLACE,
    CellPages,
    ChosenBlocks,
    PageWork,
    StoredCells,
    Total,
    Word,
    sides,
)
from strata.kernels.window_rows import WindowRows


def resolve_pages(rows: WindowRows, choice: ChosenBlocks, cells: StoredCells, pages: CellPages, work: PageWork) -> None:
    """See the package."""
    stamp = int(pages.words[Word.STAMP]) % MOST_STAMP + 1
    needed = needed_blocks(rows, choice, pages)
    table = pages.table.view(-1)
    asked = torch.cat(needed) if needed else torch.zeros(0, dtype=torch.int64)
    blocks = asked.unique().to(table.device)
    is_held = table[blocks] >= 0
    pages.used[table[blocks[is_held]].long()] = 2 * stamp + 1
    missing = blocks[~is_held]
    places = give_way(pages, len(missing), stamp)
    old = pages.owner[places].long()
    table[old[old >= 0]] = NO_PLACE
    table[missing] = places.int()
    pages.owner[places] = missing.int()
    pages.used[places] = 2 * stamp + 1
    work.missing[: len(missing)] = missing
    work.targets[: len(missing)] = places
    pages.words[Word.STAMP], pages.words[Word.BROUGHT] = stamp, len(missing)
    pages.totals[Total.ASKED] += len(asked)
    pages.totals[Total.BROUGHT] += len(missing)
    for stored, held in zip(sides(cells), sides(pages), strict=True):
        block = (-1, pages.ratio, *stored.shape[2:])
        held.view(block)[places] = stored.view(block)[missing.to(stored.device)].to(held.device)


def needed_blocks(rows: WindowRows, choice: ChosenBlocks, pages: CellPages) -> list[torch.Tensor]:
    """Of every used row the numbers of the blocks that it needs, in main memory."""
    needed = []
    for row, (slot, position) in enumerate(zip(rows.slots.tolist(), rows.positions.tolist(), strict=True)):
        if slot < 0:
            continue
        if int(choice.counts[row]):
            blocks = choice.chosen[row].cpu().long()
            if (position + 1) % pages.ratio:
                blocks = torch.cat((blocks, torch.tensor([position // pages.ratio])))
        else:
            blocks = torch.arange(position // pages.ratio + 1)
        needed.append(slot * pages.blocks + blocks)
    return needed


def give_way(pages: CellPages, count: int, stamp: int) -> torch.Tensor:
    """int64 [count]: the next places that this launch does not need and the hand has passed since they were needed."""
    used, hand = pages.used.tolist(), int(pages.words[Word.HAND])
    found: list[int] = []
    while len(found) < count:
        is_needed = used[hand] // 2 == stamp
        if not is_needed and used[hand] % 2 == 0:
            found.append(hand)
            used[hand] = 2 * stamp + 1
        elif not is_needed:
            used[hand] -= 1
        hand = (hand + 1) % pages.places
    pages.used.copy_(torch.tensor(used, dtype=torch.int32))
    pages.words[Word.HAND] = hand
    return torch.tensor(found, dtype=torch.int64, device=pages.table.device)
