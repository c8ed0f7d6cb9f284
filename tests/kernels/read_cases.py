"""Products and experts of reads by Triton against their twins, for the interpreter and for a GPU. Knows no timing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from strata.kernels.read_experts import ReadExperts, ReadWork, group_places, most_row_tiles, reference
from strata.kernels.read_products.launches import ReadLaunch
from strata.kernels.read_products.reference import multiply
from strata.quant.layout import BlobLayout
from tests.kernels.random_matrices import Kind, on_device, random_experts, random_matrix

CLOSE = 2e-5  # of a row's largest: what float32 sums of another order, which matrix units cut off, may differ by
CLOSE_IN_BF16 = 2.0**-7  # of the largest: a last bit of bf16, and what it does to silu


def random_x(seed: int, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """bf16 rows of several sizes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.randint(-2, 3, (rows, 1), generator=generator)
    return (torch.randn(rows, columns, generator=generator) * sizes).to(torch.bfloat16).to(device)


def assert_close(found: torch.Tensor, wanted: torch.Tensor, bound: float, what: object) -> None:
    """Each row within `bound` of its largest value: rows differ in size."""
    found, wanted = found.float(), wanted.float()
    assert torch.isfinite(found).all(), f"{what}: values that are not finite"
    largest = wanted.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
    error = ((found - wanted).abs() / largest).max()
    assert error <= bound, f"{what}: off by {error:.3g} of a row's largest"


@dataclass(frozen=True)
class ProductCase:
    """A matrix of a kind times some rows."""

    kind: Kind
    outputs: int
    columns: int
    rows: int
    out_type: torch.dtype = torch.float32

    def check(
        self, device: torch.device, subsets: Sequence[Sequence[int]], launches: Sequence[ReadLaunch] = ()
    ) -> None:
        """Raise AssertionError unless the kernel's rows are the twin's, and the bits of subsets those of all rows.

        Of every launch too: the table's own, and `launches`.
        """
        from strata.kernels.read_products.triton import read_products

        layout = self.kind.layout(self.outputs, self.columns)
        matrix = random_matrix(self.outputs + self.columns, layout, post_scale=0.37)
        x = random_x(self.rows, self.rows, self.columns, device)
        moved = on_device(matrix, device)

        def run(rows: torch.Tensor, launch: ReadLaunch | None = None) -> torch.Tensor:
            # A wider tensor full of NaN: what lies beside is left alone, and is not read.
            out = torch.full((rows.shape[0], self.outputs + 8), float("nan"), dtype=self.out_type, device=device)
            read_products([moved], rows, out[:, 3 : 3 + self.outputs], launch)
            assert out[:, :3].isnan().all() and out[:, 3 + self.outputs :].isnan().all(), self
            return out[:, 3 : 3 + self.outputs]

        found = run(x)
        wanted = multiply(matrix, x).to(self.out_type)
        assert_close(found, wanted, CLOSE if self.out_type == torch.float32 else CLOSE_IN_BF16, self)
        for launch in launches:
            assert torch.equal(run(x, launch), found), f"{self}: {launch}"
        for subset in subsets:
            assert torch.equal(run(x[list(subset)].contiguous()), found[list(subset)]), f"{self}: {subset}"


@dataclass(frozen=True)
class ExpertCase:
    """Experts of a kind of gate and up and one of down, and how many places each of them has."""

    gate: Kind
    up: Kind
    down: Kind
    hidden: int
    width: int
    counts: tuple[int, ...]  # places of each expert

    @property
    def layout(self) -> BlobLayout:
        """The layout of the blobs."""
        return BlobLayout(
            self.gate.layout(self.width, self.hidden),
            self.up.layout(self.width, self.hidden),
            self.down.layout(self.hidden, self.width),
        )

    def ids(self, ranks: int) -> torch.Tensor:
        """int32 [rows, ranks] with that many places of each expert, mixed; the sum of the counts is a multiple."""
        flat = torch.repeat_interleave(torch.arange(len(self.counts)), torch.tensor(self.counts))
        mixed = flat[torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(1))]
        return mixed.reshape(-1, ranks).int()

    def check(self, device: torch.device, launches: Sequence[Callable[..., object]], ranks: int = 2) -> None:
        """Raise AssertionError unless results are the twin's, and bits the same however rows and experts are cut.

        launches: pairs of functions like `experts_hidden` and `experts_down`, of different launch shapes.
        """
        layout = self.layout
        made = random_experts(3, layout, len(self.counts))
        blobs = made.moved(device)
        addresses = torch.arange(len(self.counts)) * layout.total_bytes + blobs.memory.data_ptr()
        everyone = torch.arange(len(self.counts), dtype=torch.int32)
        ids = self.ids(ranks)
        x = random_x(5, ids.shape[0], self.hidden, device)

        def run(
            hidden_launch: Callable[..., object], down_launch: Callable[..., object], rows: torch.Tensor,
            parts: Sequence[torch.Tensor],
        ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
            own = ids[rows].contiguous().to(device)
            work = ReadWork.empty(own.numel(), len(self.counts), device)
            group_places(own, work)
            hidden = torch.full((own.numel(), self.width), float("nan"), dtype=torch.bfloat16, device=device)
            by_rank = torch.full((*own.shape, self.hidden), float("nan"), dtype=torch.bfloat16, device=device)
            for part in parts:
                experts = ReadExperts(layout, addresses.to(device), part.to(device))
                most = most_row_tiles(own.numel(), part.numel())
                hidden_launch(experts, x[rows.to(device)].contiguous(), work, most, hidden)
                down_launch(experts, hidden, work, most, by_rank)
            by_place = torch.empty_like(hidden)
            by_place[work.order.long()] = hidden
            return by_place.view(*own.shape, -1), by_rank

        def twin(*given: object) -> None:
            reference.experts_hidden(given[0], given[1], given[2], given[4])  # type: ignore[arg-type]

        def down_twin(*given: object) -> None:
            reference.experts_down(given[0], given[1], given[2], given[4])  # type: ignore[arg-type]

        every_row = torch.arange(ids.shape[0])
        wanted = run(twin, down_twin, every_row, [everyone])
        first = None
        for hidden_launch, down_launch in zip(launches[::2], launches[1::2], strict=True):
            found = run(hidden_launch, down_launch, every_row, [everyone])
            assert_close(found[0], wanted[0], CLOSE_IN_BF16, self)
            assert_close(found[1], wanted[1], 4 * CLOSE_IN_BF16, self)
            first = first or found
            assert torch.equal(found[0], first[0]) and torch.equal(found[1], first[1]), f"{self}: a launch's bits"
        assert first is not None
        some = every_row[1::2].flip(0)
        parts = [everyone[1::3].contiguous(), everyone[::3].flip(0), everyone[2::3].contiguous()]
        cut = run(launches[0], launches[1], some, parts)
        assert torch.equal(cut[0], first[0][some.to(device)]), f"{self}: hidden rows of some, in parts"
        assert torch.equal(cut[1], first[1][some.to(device)]), f"{self}: rows of some, in parts"
