"""Pools of blocks beside random cells, windows that drift over them, and what must hold after each: for the twin, the
interpreter and tests/gpu alike. Knows no kernel. Everything follows from a seed."""

from dataclasses import dataclass

import torch

from strata.kernels.attention_rows.arguments import BlockChoice
from strata.kernels.cell_pages import CLAIMED, NO_PLACE, CellPages, PageWork, Total, Word, blocks_of_row, sides
from strata.kernels.window_rows import WindowRows
from strata.quant.cell_codes import CellKind, CellRows


@dataclass(frozen=True)
class PageShape:
    """How much there is of everything."""

    slots: int = 2
    blocks: int = 64
    top: int = 13
    rows: int = 3  # of the bucket
    places: int = 60
    kind: CellKind = CellKind.BF16
    kv_heads: int = 2
    head_dim: int = 32
    ratio: int = 4


PUBLISHED = PageShape(slots=2, blocks=8192, top=512, rows=4, places=4112, head_dim=256)


@dataclass(frozen=True)
class Stored:
    """See `StoredCells`."""

    keys: CellRows
    values: CellRows


@dataclass
class PageCase:
    """A pool that windows use one after another."""

    shape: PageShape
    cells: Stored
    pages: CellPages
    work: PageWork
    generator: torch.Generator
    windows: int = 0

    @classmethod
    def make(cls, shape: PageShape, device: torch.device | str = "cpu", seed: int = 0) -> "PageCase":
        """Random cells, in main memory that the device reads; an empty pool."""
        generator, is_card = torch.Generator().manual_seed(seed), torch.device(device).type == "cuda"
        cells, places = shape.blocks * shape.ratio, shape.places

        def stored(side: str) -> CellRows:
            code = getattr(shape.kind, side)
            rows = CellRows.zeros(code, shape.slots, cells, shape.kv_heads, head_dim=shape.head_dim)
            made = (_random_bytes(part, generator) for part in (rows.codes, rows.scales) if part is not None)
            return CellRows(*(part.pin_memory() if is_card else part for part in made))

        def held(side: str) -> CellRows:
            code, sizes = getattr(shape.kind, side), (places * shape.ratio, shape.kv_heads)
            return CellRows.zeros(code, *sizes, head_dim=shape.head_dim, device=device)

        def words(*sizes: int, value: int = 0, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full(sizes, value, dtype=dtype, device=device)

        pages = CellPages(
            words(shape.slots, shape.blocks, value=NO_PLACE),
            words(places, value=NO_PLACE),
            words(places),
            words(len(Word)),
            words(len(Total), dtype=torch.int64),
            held("keys"),
            held("values"),
        )
        work = PageWork.empty(shape.rows * blocks_of_row(shape.top), device)
        return cls(shape, Stored(stored("keys"), stored("values")), pages, work, generator)

    def window(self, kept: float = 0.8) -> tuple[WindowRows, BlockChoice, list[set[int]]]:
        """A window whose rows go on in their slots; of each slot's blocks about `kept` stay from one to the next.

        Rows of one slot are consecutive, the last row is now and then unused; some see every cell. Also which blocks
        each used row needs.
        """
        shape, device = self.shape, self.pages.table.device
        self.windows += 1
        rows, needed = WindowRows.empty(shape.rows, shape.slots, "cpu"), []
        chosen = torch.zeros(shape.rows, shape.top, dtype=torch.int32)
        counts = torch.zeros(shape.rows, dtype=torch.int32)
        used = shape.rows - self.windows % 2
        for row in range(used):
            slot = row * shape.slots // shape.rows
            dense = shape.top * shape.ratio + shape.ratio - 1
            is_choosing = (self.windows + slot) % 5 != 0
            longest = shape.blocks * shape.ratio - shape.rows
            position = int(torch.randint(dense, longest, (1,), generator=self.generator))
            position = position + row if is_choosing else (position + row) % dense
            rows.slots[row], rows.positions[row], counts[row] = slot, position, shape.top * is_choosing
            if is_choosing:
                chosen[row] = self._chosen(slot, (position + 1) // shape.ratio, kept)
                blocks = {*chosen[row].tolist(), *([position // shape.ratio] if (position + 1) % shape.ratio else [])}
            else:
                blocks = set(range(position // shape.ratio + 1))
            needed.append({slot * shape.blocks + block for block in blocks})
        rows = WindowRows(*(getattr(rows, name).to(device) for name in WindowRows.__dataclass_fields__))
        nothing = torch.zeros(0, device=device)
        return rows, BlockChoice(nothing, chosen.to(device), counts.to(device), nothing), needed

    def _chosen(self, slot: int, complete: int, kept: float) -> torch.Tensor:
        """Rising; the hottest by a weight that every block of a slot has, and by chance."""
        weights = torch.rand(self.shape.blocks, generator=torch.Generator().manual_seed(slot))
        noise = torch.rand(self.shape.blocks, generator=self.generator)
        scores = kept * weights + (1 - kept) * noise
        return scores[:complete].topk(self.shape.top).indices.sort().values.int()

    def missing(self, needed: list[set[int]]) -> int:
        """How many of these blocks have no place now."""
        table = self.pages.table.view(-1).cpu()
        blocks = set().union(*needed)
        return sum(int(table[block] < 0) for block in blocks)

    def check(self, needed: list[set[int]], missing: int, totals: torch.Tensor) -> None:
        """What must hold behind a launch; `missing` blocks had no place, and the counters were `totals`, before it."""
        pages = self.pages
        table, owner = pages.table.view(-1).cpu(), pages.owner.cpu()
        assert not bool((table == CLAIMED).any()), "a block was asked for and never brought"
        for block in set().union(*needed):
            assert table[block] >= 0, f"block {block} was needed and gave way"
        resident = torch.nonzero(table >= 0).flatten()
        assert torch.equal(owner[table[resident].long()], resident.int()), "the table names places of others"
        owned = torch.nonzero(owner >= 0).flatten()
        assert torch.equal(table[owner[owned].long()], owned.int()), "a place's owner does not know it"
        words = pages.words.cpu()
        assert words[Word.ARRIVALS] == words[Word.CLAIMS] == 0 and words[Word.BROUGHT] == missing
        found = (pages.totals.cpu() - totals).tolist()
        assert found == [sum(map(len, needed)), missing], f"counted {found}"
        for stored, held in zip(sides(self.cells), sides(pages), strict=True):
            size = (-1, self.shape.ratio * stored[0, 0].numel())
            wanted = stored.view(size)[resident].view(torch.uint8)
            assert torch.equal(held.cpu().view(size)[table[resident].long()].view(torch.uint8), wanted), "other bytes"


def _random_bytes(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    made = torch.randint(256, (like.nbytes,), dtype=torch.uint8, generator=generator)
    return made.view(like.dtype).view(like.shape)
