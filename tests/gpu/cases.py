"""Random cases of the kernels' gate: inputs, what the definition and the C++ library make of them, what Triton makes.

Knows no speed. A case follows from its number; results are compared as bits.
"""

from dataclasses import dataclass

import numpy as np
import torch

from strata.kernels.expert_rows.reference import expert_rows as expert_by_definition
from strata.kernels.expert_rows.reference import matrix_rows as rows_by_definition
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.kernels.launch_shapes import LaunchShape, dp4a_launch, matrix_launch
from strata.quant.layout import BlobLayout, MatrixLayout
from strata.quant.packed import PackedMatrix
from tests.gpu.native_twin import NativeTwin
from tests.kernels.joined_cases import experts_into
from tests.kernels.random_matrices import (
    KINDS,
    Experts,
    Kind,
    on_device,
    random_choices,
    random_experts,
    random_matrix,
    random_rows,
    work_on,
)

# Launches in the gate: few, because each is a compilation for every kind. One row in VRAM and four in place, groups of
# eight on the matrix units, and for the kinds that published files hold most often also others.
OFTEN = ("q2_0", "q4_0", "q4_k", "iq4_xs", "q8_0")
RANKS, EXPERTS = 2, 4
ARENA_BYTES = 64 << 20


@dataclass(frozen=True)
class MatrixCase:
    """A dense packed matrix times rows."""

    matrix: PackedMatrix
    x: torch.Tensor
    launch: LaunchShape

    def expected(self) -> torch.Tensor:
        return rows_by_definition(self.matrix, self.x)

    def native(self, twin: NativeTwin) -> torch.Tensor:
        return twin.matrix_rows(self.matrix, self.x)

    def on_gpu(self, arena: torch.Tensor) -> torch.Tensor:
        from strata.kernels.packed_rows.triton import packed_rows

        return packed_rows(on_device(self.matrix, torch.device("cuda")), self.x.cuda(), self.launch).cpu()


@dataclass(frozen=True)
class ExpertCase:
    """Rows times the experts they chose."""

    experts: Experts
    x: torch.Tensor
    choices: torch.Tensor  # [rows, RANKS]
    is_in_place: bool
    launch: LaunchShape

    def expected(self) -> torch.Tensor:
        return self._rows(expert_by_definition)

    def native(self, twin: NativeTwin) -> torch.Tensor:
        return self._rows(twin.expert_rows)

    def _rows(self, function) -> torch.Tensor:
        """Each expert once, for all of its rows."""
        out = torch.empty(*self.choices.shape, self.x.shape[1])
        for expert in self.choices.unique().tolist():
            row, rank = (self.choices == expert).nonzero(as_tuple=True)
            out[row, rank] = function(*self.experts.matrices[expert], self.x[row])
        return out

    def on_gpu(self, arena: torch.Tensor) -> torch.Tensor:
        cuda = torch.device("cuda")
        if self.is_in_place:
            memory = arena[: self.experts.blobs.memory.numel()]
            memory.copy_(self.experts.blobs.memory)
            blobs = ExpertBlobs.in_place(self.experts.blobs.layout, memory, cuda)
        else:
            blobs = self.experts.moved(cuda)
        out = torch.full((*self.choices.shape, self.x.shape[1]), float("nan"), device=cuda)
        experts_into(out, blobs, work_on(cuda, self.choices), self.x.cuda(), self.launch)
        return out.cpu()


Case = MatrixCase | ExpertCase


@dataclass(frozen=True)
class Recipe:
    """Which kernels a case of a product uses: as many compilations as there are recipes, or two."""

    is_expert: bool
    kinds: tuple[Kind, Kind]  # gate and up (or the matrix), down
    launch: LaunchShape
    is_in_place: bool = False

    def make(self, number: int, most: int = 640) -> Case:
        """Case `number`; `most` bounds the sizes."""
        random = np.random.default_rng(number)
        most_rows = {1: 2, 16: 20, 32: 40}.get(self.launch.rows, 9)
        rows = int(random.integers(1, most_rows + 1))
        post_scale = float(random.choice([1.0, 0.37]))
        kind, down = self.kinds
        if not self.is_expert:
            layout = kind.layout(int(random.integers(1, 200)), _size(random, kind, 2 * most))
            x = random_rows(number, rows, layout.columns)
            return MatrixCase(random_matrix(number, layout, post_scale), x, self.launch)
        hidden, width = _size(random, kind, most), _size(random, down, most // 2)
        gate: MatrixLayout = kind.layout(width, hidden)
        experts = random_experts(number, BlobLayout(gate, gate, down.layout(hidden, width)), EXPERTS)
        choices = random_choices(number, rows, RANKS, EXPERTS)
        return ExpertCase(experts, random_rows(number, rows, hidden), choices, self.is_in_place, self.launch)


def recipes(is_smoke: bool) -> list[Recipe]:
    """Every kind as a dense matrix, in VRAM and in place; down is often of another kind than gate and up."""
    kinds = [kind for kind in KINDS if not is_smoke or kind.name in OFTEN[:3]]
    one, four = dp4a_launch(1, 1, 2, 128), dp4a_launch(4, 1, 1)
    found: list[Recipe] = []
    for index, kind in enumerate(kinds):
        pair = (kind, kinds[(index + 5) % len(kinds)])
        found += [Recipe(False, pair, launch) for launch in ((one, four) if not is_smoke else (four,))]
        found += [Recipe(True, pair, one), Recipe(True, pair, four, True)]
        if kind.name in OFTEN and not is_smoke:
            found += [Recipe(True, (kind, kind), four), Recipe(True, (kind, kind), one, True)]
            found += [Recipe(False, pair, dp4a_launch(2, 4, 4, 96)), Recipe(False, pair, dp4a_launch(8, 2, 1))]
        if not kind.code.is_float:
            wide = (matrix_launch(16, 2, 80), matrix_launch(32, 1, 80), matrix_launch(8, 4, 128))[index % 3]
            found += [Recipe(False, pair, matrix_launch(8, 1, 48)), Recipe(False, pair, wide)]
            found += [Recipe(True, (kind, kind), matrix_launch(8, 1), index % 2 == 1)]
    return found


def _size(random: np.random.Generator, kind: Kind, most: int) -> int:
    step = max(kind.step, 1)
    return step * int(random.integers(1, max(most // step, 1) + 1))


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two float32 tensors hold the same bits."""
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
