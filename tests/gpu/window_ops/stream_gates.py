"""Gates over residual streams on a GPU: the twins' bits in several codes and launches, also again and again; times."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from strata.kernels.launch_shapes import few_launch, matrix_launch
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.stream_gates import LowOut, arrival_columns, gates_down, stream_gates
from strata.quant.packed import PackedMatrix
from tests.gpu.weights import random_dense
from tests.kernels.arrival_cases import check_arrivals
from tests.kernels.division_cases import check_division
from tests.kernels.gate_cases import DownCase, GatesCase, room_for_low
from tests.kernels.joined_cases import KIND, assert_bits, filled
from tests.kernels.random_matrices import on_device, random_matrix, random_rows
from tests.kernels.stream_cases import room

STREAMS, HIDDEN, LOW_RANK = 4, 2560, 320
WIDTH = STREAMS * HIDDEN
ROWS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32)
COPIES = 16  # of both matrices in one timed call: 55 MB or more

GATES_LAUNCHES = ((1, False), (2, False), (8, True))  # fields of a GatesLaunch
DOWN_LAUNCHES = (
    few_launch(1, 8, 4, 8, 10, 255),
    few_launch(2, 4, 4, 4, 5, 255),
    few_launch(4, 16, 2, 8, 2, 255),
    matrix_launch(8, 4, 128, prefetches=True),
    matrix_launch(16, 2, 128),
)


def cases(device: torch.device) -> Iterable[tuple[str, Callable[[], None]]]:
    """The published sizes in the codes that files have, and tiny ones; every launch; what both are made of."""
    yield "division without branches", partial(check_division, device, 1 << 23)
    yield "programs that count each other", partial(check_arrivals, device, 200)
    for kind in ("q4_0", "q8_0", "bf16"):
        for rows in ROWS:
            yield f"gates in {kind}, {rows} rows", partial(GatesCase(kind, LOW_RANK, rows, hidden=HIDDEN).check, device)
    for rows in ROWS:
        down = DownCase(("q8_0",), LOW_RANK, WIDTH, rows)
        yield f"down in q8_0, {rows} rows", partial(down.check, device)
    for gates in (
        *(GatesCase("f32", 16, rows, 4, 64) for rows in (1, 5)),
        *(GatesCase("iq4_xs", 256, rows, 2, 64) for rows in (1, 5)),
        *(GatesCase("q6_k", 512, rows, 3, 32) for rows in (1, 5)),
        *(GatesCase("q2_0", 64, rows, 1, 96) for rows in (1, 5)),
        GatesCase("q6_k", 768, 5),
        *(
            GatesCase(kind, LOW_RANK if kind.endswith("0") else 256, 7, 4, 256, launch)
            for kind in ("q4_0", "q8_0", "iq4_xs", "q6_k")
            for launch in GATES_LAUNCHES
        ),
    ):
        yield str(gates), partial(gates.check, device)
    for down in (
        *(DownCase(("q8_0",), LOW_RANK, 1280, 11, launch=launch) for launch in DOWN_LAUNCHES),
        DownCase(("bf16",), LOW_RANK, WIDTH, 1, is_plain=True),
        DownCase(("bf16",), LOW_RANK, WIDTH, 5, is_plain=True),
        DownCase(("f32",), 45, 96, 3, streams=3, is_plain=True),
        DownCase(("q4_k",), 96, 512, 9, has_strengths=False),
        DownCase(("q8_0", "f32"), 64, 512, 6),
        DownCase(("q4_0",), 32, 64, 2, streams=1),
    ):
        yield str(down), partial(down.check, device)
    for rows in (1, 2, 8, 32):
        down = DownCase(("q8_0",), LOW_RANK, WIDTH, rows)
        yield f"down, {rows} rows: 200 turns in the same room", partial(down.check, device, 200)
    for rows in (2, 8):
        yield f"gates, {rows} rows: each alone as in company, one of NaN", partial(_check_company, device, rows)


def speeds(device: torch.device) -> Iterable[tuple[str, Callable[[], None], int]]:
    """Down and gates after one another, of the published sizes; bytes: the matrices once."""
    for kind in ("q4_0", "q8_0", "bf16"):
        chain = GatesChain.of(kind, COPIES)
        for rows in (1, 2, 4, 8, 32):
            yield f"gates down and up in {kind}, {rows} rows", chain.calls(rows, device), chain.total_bytes


class GatesChain:
    """Copies of both matrices, enough that none is read from the cache, as launches after one another."""

    def __init__(self, pairs: list[tuple[PackedMatrix, PackedMatrix]]):
        self.pairs = pairs

    @classmethod
    def of(cls, kind: str, copies: int) -> "GatesChain":
        """Of random weights."""
        layouts = KIND[kind].layout(LOW_RANK + STREAMS, WIDTH), KIND[kind].layout(WIDTH, LOW_RANK)
        return cls([(random_dense(layouts[0]), random_dense(layouts[1])) for _ in range(copies)])

    @property
    def total_bytes(self) -> int:
        """Of all copies."""
        return sum(matrix.layout.total_bytes for pair in self.pairs for matrix in pair)

    def rooms(self, rows: int, device: torch.device) -> tuple[RowsOut, LowOut, RowsOut]:
        """Normed rows, room for low, and for mixed rows in both forms."""
        down, up = (matrix.layout for matrix in self.pairs[0])
        width = down.rows
        low = LowOut(
            room_for([up], rows, device),
            torch.empty(rows, STREAMS, device=device),
            torch.empty(rows, width, device=device),
            torch.zeros(rows, arrival_columns(width), dtype=torch.int32, device=device),
        )
        x = torch.randn(rows, WIDTH, device=device)
        return filled(x, room_for([down], rows, device, reads_plain=True)), low, room(rows, HIDDEN, device, True, True)

    def calls(self, rows: int, device: torch.device) -> Callable[[], None]:
        """One call of all copies, as a window launches them."""
        normed, low, mixed = self.rooms(rows, device)
        assert normed.plain is not None
        plain = normed.plain

        def call() -> None:
            for down, up in self.pairs:
                gates_down([down], normed, STREAMS, low)
                stream_gates(low.low, plain, up, STREAMS, mixed)

        return call


def _check_company(device: torch.device, rows: int) -> None:
    """Row 1 is unused and holds NaN: no other row may notice, in both launches."""
    layouts = KIND["q8_0"].layout(LOW_RANK + STREAMS, WIDTH), KIND["q8_0"].layout(WIDTH, LOW_RANK)
    down, up = (on_device(random_matrix(seed, layout), device) for seed, layout in enumerate(layouts))
    x = random_rows(3, rows, WIDTH).to(device)
    x[1] = float("nan")

    def both(first: int, last: int) -> tuple[LowOut, torch.Tensor]:
        part = x[first:last].contiguous()
        normed = filled(part, room_for([down.layout], last - first, device))
        low = room_for_low(last - first, LOW_RANK, STREAMS, device, plain=False)
        mixed = room(last - first, HIDDEN, device)
        gates_down([down], normed, STREAMS, low)
        stream_gates(low.low, part, up, STREAMS, mixed)
        assert mixed.plain is not None
        return low, mixed.plain

    together, mixed = both(0, rows)
    assert together.strengths is not None
    for row in range(0, rows, 2):
        alone, mixed_alone = both(row, row + 1)
        assert alone.strengths is not None
        assert_bits(f"row {row}: mixed", mixed[row], mixed_alone[0])
        assert_bits(f"row {row}: strengths", together.strengths[row], alone.strengths[0])
