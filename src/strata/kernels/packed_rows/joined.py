"""Packed matrices of different layouts that read the same rows, on a GPU: two in one launch. Knows no expert.

A program's number says which matrix it belongs to; its tile is that of triton.py, so its bits are too.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs, disable-error-code="assignment"

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.kernels.configurations import joined_launches
from strata.kernels.dependent import allow_dependents, dependent_options
from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.decode import decode_steps
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.packed_rows.triton import arrays_of, dense_constants, device_name, multiply_packed, store_dense
from strata.quant.layout import MatrixLayout
from strata.quant.packed import PackedMatrix


@triton.jit(
    do_not_specialize=[
        "row_step", "block_step", "out_stride", "row_count", "columns",
        "outputs_0", "a0", "a1", "a2", "a3", "offset_0", "outputs_1", "b0", "b1", "b2", "b3", "offset_1",
    ],
    do_not_specialize_on_alignment=["x", "q", "records", "out"],
)  # fmt: skip
def two_matrices_kernel(
    x, q, records, row_step, block_step, out, out_stride, row_count, columns,
    codes_0, scales_0, super_scales_0, mins_0, super_mins_0, outputs_0, a0, a1, a2, a3, offset_0, post_scale_0,
    codes_1, scales_1, super_scales_1, mins_1, super_mins_1, outputs_1, b0, b1, b2, b3, offset_1, post_scale_1,
    CODE_0: tl.constexpr, SCALE_0: tl.constexpr, MIN_0: tl.constexpr, IS_FLOAT_0: tl.constexpr,
    IS_LINEAR_0: tl.constexpr, HAS_MIN_0: tl.constexpr, SUB_BLOCK_0: tl.constexpr,
    CODE_1: tl.constexpr, SCALE_1: tl.constexpr, MIN_1: tl.constexpr, IS_FLOAT_1: tl.constexpr,
    IS_LINEAR_1: tl.constexpr, HAS_MIN_1: tl.constexpr, SUB_BLOCK_1: tl.constexpr,
    ON_MATRIX_UNITS_0: tl.constexpr, ROWS_0: tl.constexpr, UNROLL_0: tl.constexpr, OUTPUTS_0: tl.constexpr,
    SIDE_0: tl.constexpr, CODE_BYTES_0: tl.constexpr, SCALE_BYTES_0: tl.constexpr,
    ON_MATRIX_UNITS_1: tl.constexpr, ROWS_1: tl.constexpr, UNROLL_1: tl.constexpr, OUTPUTS_1: tl.constexpr,
    SIDE_1: tl.constexpr, CODE_BYTES_1: tl.constexpr, SCALE_BYTES_1: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs_0 + outputs_1]; grid: groups of ROWS_0 rows of every part of the first, then of the second."""
    allow_dependents()
    program = tl.program_id(0)
    groups_0, groups_1 = tl.cdiv(row_count, ROWS_0), tl.cdiv(row_count, ROWS_1)
    programs_0 = groups_0 * tl.cdiv(outputs_0, OUTPUTS_0)
    if program < programs_0:
        store_dense(
            (codes_0, scales_0, super_scales_0, mins_0, super_mins_0), post_scale_0,
            (x if IS_FLOAT_0 else q, records, row_step, block_step), (a0, a1, a2, a3), offset_0, out, out_stride,
            program % groups_0 * ROWS_0, row_count, program // groups_0, outputs_0, columns,
            CODE_0, SCALE_0, MIN_0, IS_FLOAT_0, IS_LINEAR_0, HAS_MIN_0, SUB_BLOCK_0,
            ON_MATRIX_UNITS_0, ROWS_0, UNROLL_0, OUTPUTS_0, SIDE_0, CODE_BYTES_0, SCALE_BYTES_0,
        )  # fmt: skip
    else:
        program -= programs_0
        store_dense(
            (codes_1, scales_1, super_scales_1, mins_1, super_mins_1), post_scale_1,
            (x if IS_FLOAT_1 else q, records, row_step, block_step), (b0, b1, b2, b3), offset_1,
            out + outputs_0, out_stride,
            program % groups_1 * ROWS_1, row_count, program // groups_1, outputs_1, columns,
            CODE_1, SCALE_1, MIN_1, IS_FLOAT_1, IS_LINEAR_1, HAS_MIN_1, SUB_BLOCK_1,
            ON_MATRIX_UNITS_1, ROWS_1, UNROLL_1, OUTPUTS_1, SIDE_1, CODE_BYTES_1, SCALE_BYTES_1,
        )  # fmt: skip


@dataclass(frozen=True)
class DenseTask:
    """One matrix as a kernel that knows several of them takes it."""

    matrix: PackedMatrix
    launch: LaunchShape

    @property
    def arguments(self) -> list[object]:
        """Arrays, outputs, table, offset and post scale, in the kernels' order."""
        steps = decode_steps(self.matrix.layout)
        sizes = (self.matrix.layout.rows, *steps.table, steps.offset)
        return [*arrays_of(self.matrix), *sizes, self.matrix.post_scale]

    def constants(self, which: str) -> dict[str, object]:
        """Those of `constants_of` and of the parts of outputs."""
        own = dense_constants(self.matrix.layout, self.launch)
        return constants_of(self.matrix.layout, self.launch, which) | _ending(own, which)

    def programs(self, rows: int) -> int:
        """Programs of a launch over `rows` rows."""
        parts = triton.cdiv(self.matrix.layout.rows, self.launch.outputs)
        return triton.cdiv(rows, self.launch.rows) * parts


def constants_of(layout: MatrixLayout, launch: LaunchShape, which: str) -> dict[str, object]:
    """The constexpr arguments of one of a kernel's matrices, their names with the ending `_which`."""
    return _ending(decode_steps(layout).constants(launch.uses_matrix_units) | launch.constants, which)


def _ending(arguments: Mapping[str, object], which: str) -> dict[str, object]:
    return {f"{name}_{which}": value for name, value in arguments.items()}


def multiply_into(
    matrices: Sequence[PackedMatrix], x: RowsOut, out: torch.Tensor, launches: Sequence[LaunchShape] | None = None
) -> None:
    """See `strata.kernels.packed_rows.multiply_into`; `launches`, one a matrix: the table's if there are none."""
    rows, first, device = out.shape[0], 0, device_name(out.device)
    for start in range(0, len(matrices), 2):
        pair = matrices[start : start + 2]
        part = out[:, first:]
        if launches is not None:
            chosen = list(launches[start : start + 2])
        else:
            chosen = joined_launches(device, [matrix.layout for matrix in pair], rows)
        if len(pair) == 2:
            multiply_two((DenseTask(pair[0], chosen[0]), DenseTask(pair[1], chosen[1])), x, part, rows)
        else:
            layout = pair[0].layout
            multiply_packed(pair[0], decode_steps(layout), rows_of(layout, x), rows, chosen[0], part)
        first += sum(matrix.layout.rows for matrix in pair)


def multiply_two(tasks: tuple[DenseTask, DenseTask], x: RowsOut, out: torch.Tensor, rows: int) -> None:
    """Both matrices in one launch, whose warps and registers are those of the first task."""
    first, second = tasks
    launch = first.launch
    plain, quantized = both_forms(x)
    two_matrices_kernel[(first.programs(rows) + second.programs(rows),)](
        plain, *quantized.arguments, out, out.stride(0), rows, first.matrix.layout.columns,
        *first.arguments, *second.arguments, **first.constants("0"), **second.constants("1"),
        **launch.options, **dependent_options(),
    )  # fmt: skip


def rows_of(layout: MatrixLayout, x: RowsOut) -> Activations:
    """The form of the rows that a matrix of this layout reads."""
    plain, quantized = both_forms(x)
    return Activations(plain, plain) if layout.code.is_float else quantized


def both_forms(x: RowsOut) -> tuple[torch.Tensor, Activations]:
    """Plain rows and quantized ones; a form that is missing is stood for by the other, and nobody reads it."""
    plain, quantized = x.plain, x.quantized
    if quantized is None:
        assert plain is not None  # RowsOut holds at least one
        return plain, Activations(plain, plain)
    return quantized.values if plain is None else plain, quantized
