"""Random packed matrices, experts and work in every storage code, for tests of kernels and for tests/gpu.

Knows no kernel. Everything follows from a seed.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from strata.kernels.expert_rows.work import ExpertBlobs, ExpertWork
from strata.quant import float_codes
from strata.quant.layout import Array, BlobLayout, Code, MatrixLayout, MinKind, ScaleKind
from strata.quant.packed import PackedMatrix, join_codes, pack, view_matrix
from strata.quant.rows import RowMajor
from tests.packed_buffers import to_buffer

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def counting(entries: int, first: int) -> tuple[int, ...]:
    """A table that is code + offset."""
    return tuple(range(first, first + entries))


@dataclass(frozen=True)
class Kind:
    """A layout without its sizes."""

    name: str
    code: Code
    sub_block: int = 32
    scale_kind: ScaleKind = ScaleKind.NONE
    min_kind: MinKind = MinKind.NONE
    table: tuple[int, ...] = ()

    def layout(self, rows: int, columns: int) -> MatrixLayout:
        """The layout of a matrix of this kind."""
        return MatrixLayout(rows, columns, self.code, self.sub_block, self.scale_kind, self.min_kind, self.table)

    @property
    def step(self) -> int:
        """Columns must be a multiple."""
        if self.code.is_float:
            return 1
        if self.scale_kind is ScaleKind.SUPER or self.min_kind is MinKind.SUPER:
            return 256
        return max(self.sub_block, 32)


# What published formats become, and combinations that only the contract has.
KINDS = (
    Kind("q2_0", Code.CODE2, 64, ScaleKind.F16, table=counting(4, -1)),
    Kind("code2-any-table", Code.CODE2, 16, ScaleKind.F32, MinKind.F16, (-128, 127, 3, -7)),
    Kind("q4_0", Code.CODE4, 32, ScaleKind.F16, table=counting(16, -8)),
    Kind("q4_1", Code.CODE4, 32, ScaleKind.F16, MinKind.F16, counting(16, 0)),
    Kind("q4_k", Code.CODE4, 32, ScaleKind.SUPER, MinKind.SUPER, counting(16, 0)),
    Kind("q2_k", Code.CODE4, 16, ScaleKind.SUPER, MinKind.SUPER, counting(16, 0)),
    Kind("q3_k", Code.CODE4, 16, ScaleKind.SUPER, table=counting(16, -4)),
    Kind("iq4_xs", Code.CODE4, 32, ScaleKind.SUPER, table=IQ4),
    Kind("mxfp4", Code.CODE4, 32, ScaleKind.E8M0, table=FP4),
    Kind("nvfp4", Code.CODE4, 16, ScaleKind.UE4M3, table=FP4),
    Kind("code4-64", Code.CODE4, 64, ScaleKind.F32, MinKind.F16, IQ4),
    Kind("q8_0", Code.CODE8, 32, ScaleKind.F16),
    Kind("q6_k", Code.CODE8, 16, ScaleKind.SUPER),
    Kind("q5_k", Code.CODE8, 32, ScaleKind.SUPER, MinKind.SUPER),
    Kind("f32", Code.F32),
    Kind("bf16", Code.BF16),
    Kind("f16", Code.F16),
    Kind("fp8", Code.FP8, 128, ScaleKind.F32),
)


def _scales(random: np.random.Generator, kind: ScaleKind, shape: tuple[int, int]) -> NDArray[np.generic] | None:
    if kind is ScaleKind.NONE:
        return None
    if kind is ScaleKind.F16:
        return (random.standard_normal(shape) * 0.02).astype(np.float16).view(np.uint16)
    if kind is ScaleKind.E8M0:
        return np.where(random.random(shape) < 0.05, 0, random.integers(108, 124, shape)).astype(np.uint8)
    if kind is ScaleKind.UE4M3:
        return random.integers(0, 127, shape).astype(np.uint8)
    if kind is ScaleKind.SUPER:
        return random.integers(-128, 128, shape).astype(np.int8)
    return (random.standard_normal(shape) * 10.0 ** random.integers(-6, 2, shape)).astype(np.float32)


def _supers(random: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.uint16]:
    tiny = random.random(shape) < 0.05  # denormals of f16
    values = np.where(tiny, random.random(shape) * 6e-5, random.standard_normal(shape) * 0.002)
    return values.astype(np.float16).view(np.uint16)


def _float_words(random: np.random.Generator, layout: MatrixLayout) -> NDArray[np.generic]:
    values = random.standard_normal((layout.rows, layout.columns)).astype(np.float32)
    if layout.code is Code.BF16:
        return float_codes.round_to_bf16(values)
    if layout.code is Code.FP8:
        return torch.from_numpy(values * 9).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return values.astype(np.float16) if layout.code is Code.F16 else values


def random_matrix(seed: int, layout: MatrixLayout, post_scale: float = 1.0) -> PackedMatrix:
    """All codes, wild scales, some of them denormal."""
    random = np.random.default_rng(seed)
    subs, supers = (layout.rows, layout.sub_blocks), (layout.rows, layout.super_blocks)
    if layout.code.is_float:
        return pack(
            layout, RowMajor(_float_words(random, layout), _scales(random, layout.scale_kind, subs)), post_scale
        )
    shape = (layout.rows, layout.columns)
    if layout.code is Code.CODE8:
        codes: NDArray[np.generic] = random.integers(-128, 128, shape).astype(np.int8)
    else:
        codes = random.integers(0, len(layout.table), shape).astype(np.uint8)
    mins: NDArray[np.generic] | None = None
    if layout.min_kind is MinKind.F16:
        mins = _scales(random, ScaleKind.F16, subs)
    elif layout.min_kind is MinKind.SUPER:
        mins = random.integers(0, 256, subs).astype(np.uint8)
    rows = RowMajor(
        join_codes(layout.code, codes),
        _scales(random, layout.scale_kind, subs),
        _supers(random, supers) if layout.scale_kind is ScaleKind.SUPER else None,
        mins,
        _supers(random, supers) if layout.min_kind is MinKind.SUPER else None,
    )
    return pack(layout, rows, post_scale)


def random_rows(seed: int, rows: int, columns: int) -> torch.Tensor:
    """Activations of every size, with blocks that are zero or too small to count."""
    random = np.random.default_rng(seed)
    size = 10.0 ** random.integers(-3, 3, (rows, -(-columns // 32)))
    size[random.random(size.shape) < 0.1] = 0
    size[random.random(size.shape) < 0.1] = 1e-36
    values = random.standard_normal((rows, columns)) * np.repeat(size, 32, axis=1)[:, :columns]
    return torch.from_numpy(values.astype(np.float32))


def on_device(matrix: PackedMatrix, device: torch.device) -> PackedMatrix:
    """The same matrix, its arrays copied to a device at multiples of 64 bytes."""
    buffer = to_buffer(matrix).to(device)
    return view_matrix(matrix.layout, buffer, matrix.layout.places(), matrix.post_scale)


@dataclass(frozen=True)
class Experts:
    """Experts as matrices and as blobs."""

    blobs: ExpertBlobs  # in plain host memory
    matrices: tuple[tuple[PackedMatrix, PackedMatrix, PackedMatrix], ...]

    def moved(self, device: torch.device) -> ExpertBlobs:
        """The blobs on a device."""
        return replace(self.blobs, memory=self.blobs.memory.to(device))


def random_experts(seed: int, layout: BlobLayout, count: int) -> Experts:
    """`count` experts, filled into blobs."""
    memory = torch.zeros(count, layout.total_bytes, dtype=torch.uint8)
    matrices = []
    for expert in range(count):
        made = []
        for index, (each, places) in enumerate(zip(layout.matrices, layout.places(), strict=True)):
            post_scale = (1.0, 0.37, 2.5)[(expert + index) % 3]
            matrix = random_matrix(seed + 10 * expert + index, each, post_scale)
            view_matrix(each, memory[expert], places).copy_arrays_from(matrix)
            made.append(matrix)
        posts = layout.post_scales
        scales = torch.tensor([matrix.post_scale for matrix in made], dtype=torch.float32)
        memory[expert, posts.offset : posts.offset + posts.size] = scales.view(torch.uint8)
        matrices.append((made[0], made[1], made[2]))
    assert set(layout.places()[0]) == set(Array)
    return Experts(ExpertBlobs(layout, memory.reshape(-1)), tuple(matrices))


def random_choices(seed: int, rows: int, ranks: int, experts: int) -> torch.Tensor:
    """[rows, ranks]: distinct experts in every row."""
    random = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([random.permutation(experts)[:ranks] for _ in range(rows)]).astype(np.int64))


def work_on(device: torch.device, choices: torch.Tensor) -> ExpertWork:
    """The list of work for `choices` on a device."""
    return moved_work(ExpertWork.from_choices(choices), device)


def moved_work(work: ExpertWork, device: torch.device) -> ExpertWork:
    """The same work on a device."""
    moved = {name: getattr(work, name).to(device) for name in ("seats", "starts", "places", "rows")}
    return replace(work, **moved)
