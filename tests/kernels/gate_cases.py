"""Gates over residual streams by Triton against their twins, for the interpreter and for a GPU, compared as bits.

Buffers hold NaN and impossible integers at first, and are used again: what a launch leaves behind must not show.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.stream_gates import reference
from strata.kernels.stream_gates.low_out import LowOut, arrival_columns
from strata.quant.packed import PackedMatrix
from tests.kernels.joined_cases import KIND, assert_bits, filled, room_on
from tests.kernels.random_matrices import on_device, random_matrix, random_rows
from tests.kernels.stream_cases import room

CPU = torch.device("cpu")
SPREAD = 6.0  # of shares: silu and sigmoid are then neither 0 nor 1


def room_for_low(
    rows: int, low_rank: int, streams: int, device: torch.device, plain: bool, has_strengths: bool = True
) -> LowOut:
    """Room for what `gates_down` makes: low as it is or quantized."""
    width = low_rank + streams * has_strengths
    return LowOut(
        room(rows, low_rank, device, plain, not plain),
        torch.full((rows, streams), float("nan"), device=device) if has_strengths else None,
        torch.full((rows, width), float("nan"), device=device),
        torch.zeros(rows, arrival_columns(width), dtype=torch.int32, device=device),
    )


def low_for(up: PackedMatrix, low: torch.Tensor, device: torch.device) -> RowsOut:
    """Rows `low` in the form that this code of `up` reads."""
    is_float = up.layout.code.is_float
    return filled(low, room(low.shape[0], low.shape[1], device, is_float, not is_float))


def check_rows(what: str, found: RowsOut, wanted: torch.Tensor) -> None:
    """Every form of the rows that there is."""
    from strata.kernels.packed_rows.activations import quantize_rows

    if found.plain is not None:
        assert_bits(what, found.plain, wanted)
    if found.quantized is not None:
        quantized = quantize_rows(wanted.to(found.quantized.values.device), LaunchShape())
        assert torch.equal(found.quantized.values, quantized.values), f"{what}: q differs"
        assert torch.equal(found.quantized.records, quantized.records), f"{what}: records differ"


@dataclass(frozen=True)
class DownCase:
    """Matrices of these kinds under one another: one for all shares, or one for low and one for strengths."""

    kinds: tuple[str, ...]
    low_rank: int
    columns: int
    rows: int
    streams: int = 4
    is_plain: bool = False
    has_strengths: bool = True
    launch: LaunchShape | None = None

    def check(self, device: torch.device, turns: int = 3) -> None:
        """Raise AssertionError unless every turn in the same room has the bits of the twin."""
        from strata.kernels.stream_gates.down import gates_down

        inputs = [random_rows(seed, self.rows, self.columns) for seed in (7, 8)]
        down = [_spread(matrix, inputs[0]) for matrix in self._matrices()]
        wanted = [self._wanted(down, x) for x in inputs]
        there = [on_device(matrix, device) for matrix in down]
        rooms = [filled(x, room_on(device, [matrix.layout for matrix in down], self.rows)) for x in inputs]
        out = room_for_low(self.rows, self.low_rank, self.streams, device, self.is_plain, self.has_strengths)
        for turn in range(turns):
            gates_down(there, rooms[turn % 2], self.streams, out, self.launch)
            assert not bool(out.arrivals.any()), f"{self}, turn {turn}: counters are left"
            self._compare(turn, out, wanted[turn % 2])

    def _matrices(self) -> Sequence[PackedMatrix]:
        outputs = [self.low_rank, self.streams] if len(self.kinds) == 2 else [self.low_rank]
        if len(self.kinds) == 1 and self.has_strengths:
            outputs = [self.low_rank + self.streams]
        return [
            random_matrix(seed, KIND[kind].layout(count, self.columns))
            for seed, (kind, count) in enumerate(zip(self.kinds, outputs, strict=True))
        ]

    def _wanted(self, down: Sequence[PackedMatrix], x: torch.Tensor) -> LowOut:
        out = room_for_low(self.rows, self.low_rank, self.streams, CPU, True, self.has_strengths)
        reference.gates_down(down, RowsOut(x, None), self.streams, out)
        return out

    def _compare(self, turn: int, found: LowOut, wanted: LowOut) -> None:
        what = f"{self}, turn {turn}"
        assert wanted.low.plain is not None
        assert_bits(f"{what}: shares", found.shares, wanted.shares)
        check_rows(f"{what}: low", found.low, wanted.low.plain)
        if found.strengths is not None and wanted.strengths is not None:
            assert_bits(f"{what}: strengths", found.strengths, wanted.strengths)


@dataclass(frozen=True)
class GatesCase:
    """`up` of one kind for streams of `hidden` columns; `launch`: the fields of a `GatesLaunch`."""

    kind: str
    low_rank: int
    rows: int
    streams: int = 4
    hidden: int = 32
    launch: tuple[int, bool] | None = None

    def check(self, device: torch.device) -> None:
        """Raise AssertionError unless mixed rows, as they are and quantized, have the bits of the twin."""
        from strata.kernels.stream_gates.triton import GatesLaunch, stream_gates

        width = self.streams * self.hidden
        up = random_matrix(self.rows, KIND[self.kind].layout(width, self.low_rank), post_scale=0.37)
        normed, low = random_rows(2, self.rows, width), random_rows(3, self.rows, self.low_rank)
        found, wanted = room(self.rows, self.hidden, device, True, True), room(self.rows, self.hidden, CPU)
        reference.stream_gates(RowsOut(low, None), normed, up, self.streams, wanted)
        given, launch = low_for(up, low, device), self.launch and GatesLaunch(*self.launch)
        stream_gates(given, normed.to(device), on_device(up, device), self.streams, found, launch)
        assert wanted.plain is not None
        check_rows(str(self), found, wanted.plain)


def _spread(matrix: PackedMatrix, x: torch.Tensor) -> PackedMatrix:
    """The matrix with a factor, a power of two, that gives its products the wanted spread."""
    products = torch.empty(x.shape[0], matrix.layout.rows)
    reference.multiply_into([matrix], RowsOut(x, None), products)
    return replace(matrix, post_scale=2.0 ** round(log2(SPREAD / float(products.abs().mean()))))
