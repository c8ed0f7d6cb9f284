"""Calls of the kernels over weights that come from memory, with what they read and compute. Knows no clock."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from strata.kernels.expert_rows.buffers import ExpertBuffers
from strata.kernels.expert_rows.triton import DOWN, MatrixTask, run_matrix
from strata.kernels.expert_rows.window import expert_rows_into, gate_up_into
from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows import room_for
from strata.kernels.packed_rows.activations import activations_for
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.joined import rows_of
from strata.kernels.packed_rows.triton import multiply_packed
from strata.quant.layout import MatrixLayout
from strata.quant.packed import PackedMatrix
from tests.gpu.floors import float_operations, matrix_bytes
from tests.gpu.weights import random_dense
from tests.kernels.joined_cases import filled
from tests.kernels.random_matrices import work_on

CACHE_BYTES = 256 << 20  # what is read before the same bytes come again
CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Calls:
    """Calls that do the same work on different weights; bytes and float operations are those of one, on average."""

    read: float
    operations: float
    functions: list[Callable[[], object]]


@dataclass(frozen=True)
class Bench:
    """Experts that rows chose: each entry of `choices` [rows, ranks] is the work of one call."""

    blobs: ExpertBlobs
    choices: tuple[torch.Tensor, ...]

    @classmethod
    def all_rows(cls, blobs: ExpertBlobs, count: int, rows: int = 1) -> "Bench":
        """`count` experts a call, every one with every row."""
        groups = _sets(blobs, count)
        seats = torch.randperm(blobs.seats)[: groups * count].reshape(groups, count)
        return cls(blobs, tuple(group.expand(rows, -1) for group in seats))

    @classmethod
    def routed(cls, blobs: ExpertBlobs, rows: int, ranks: int = 10, experts: int = 512) -> "Bench":
        """Windows of rows that each choose `ranks` of the first `experts` at random."""
        groups, among = _sets(blobs, rows * ranks), min(experts, blobs.seats)
        windows = [torch.stack([torch.randperm(among)[:ranks] for _ in range(rows)]) for _ in range(groups)]
        return cls(blobs, tuple(windows))

    @cached_property
    def works(self) -> list[ExpertWork]:
        return [work_on(CUDA, choices) for choices in self.choices]

    @property
    def experts(self) -> float:
        """Distinct experts of a call, on average."""
        return sum(work.seats.numel() for work in self.works) / len(self.works)

    def calls(self, part: str, launch: LaunchShape | None = None) -> Calls:
        """`part`: gate+up, down, or whole (gate, up, the hidden rows quantized, and down)."""
        layout, (rows, ranks) = self.blobs.layout, self.choices[0].shape
        x = filled(torch.randn(rows, layout.gate.columns, device=CUDA), room_for([layout.gate], rows, CUDA))
        buffers = ExpertBuffers.empty(layout, rows, ranks, CUDA)
        both = 2.0 * matrix_bytes(layout.gate), 2 * float_operations(layout.gate, rows * ranks)
        down = float(matrix_bytes(layout.down)), float_operations(layout.down, rows * ranks)
        if part == "gate+up":
            functions = [partial(gate_up_into, self.blobs, w, x, buffers.gate_up, launch) for w in self.works]
            return Calls(self.experts * both[0], both[1], list(functions))
        if part == "down":
            filled(torch.randn(rows * ranks, layout.down.columns, device=CUDA), buffers.hidden)
            h, out = rows_of(layout.down, buffers.hidden), buffers.by_rank.view(rows * ranks, -1)
            tasks = [(w, MatrixTask((DOWN,), h, w.places, out)) for w in self.works]
            functions = [partial(run_matrix, self.blobs, w, task, launch) for w, task in tasks]
            return Calls(self.experts * down[0], down[1], list(functions))
        functions = [partial(expert_rows_into, self.blobs, w, x, buffers, None, launch) for w in self.works]
        return Calls(self.experts * (both[0] + down[0]), both[1] + down[1], list(functions))


def _sets(blobs: ExpertBlobs, count: int) -> int:
    """How many calls read past the cache, if there are that many blobs."""
    wanted = max(2, min(8, CACHE_BYTES // (count * blobs.layout.total_bytes) + 1))
    return max(1, min(wanted, blobs.seats // count))


@dataclass(frozen=True)
class DenseBench:
    """One dense matrix in several copies."""

    layout: MatrixLayout

    @cached_property
    def matrices(self) -> list[PackedMatrix]:
        size = matrix_bytes(self.layout)
        return [random_dense(self.layout) for _ in range(min(8, CACHE_BYTES // size + 1))]

    def calls(self, rows: int, launch: LaunchShape) -> Calls:
        """The matrix kernel without the quantization of its rows."""
        x = torch.randn(rows, self.layout.columns, device=CUDA)
        activations, steps = activations_for(self.layout, x, launch), decode_steps(self.layout)
        functions = [partial(multiply_packed, m, steps, activations, rows, launch) for m in self.matrices]
        return Calls(matrix_bytes(self.layout), float_operations(self.layout, rows), list(functions))
