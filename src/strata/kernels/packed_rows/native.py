"""Packed matrices as the C++ library takes them: the CPU's path of packed rows, bit-equal to reference.py.

Knows layouts and the library's structs; knows no thread and no instruction set.
"""

from strata.native import abi
from strata.native.matrices import NativeMatrix, matrix_form
from strata.quant.layout import Array, MatrixLayout
from strata.quant.packed import PackedMatrix


def native_form(layout: MatrixLayout, post_scale: float = 1.0) -> abi.Matrix:
    """A layout as the library describes a matrix, without arrays."""
    return matrix_form(
        layout.code.value,
        layout.rows,
        layout.columns,
        sub_block=layout.sub_block,
        scale_kind=int(layout.scale_kind),
        min_kind=int(layout.min_kind),
        table=layout.table,
        post_scale=post_scale,
    )


def native_matrix(matrix: PackedMatrix) -> NativeMatrix:
    """The matrix for `strata.native.matrices.matrix_rows`. Its tensors are kept alive and read where they are."""
    return NativeMatrix(native_form(matrix.layout, matrix.post_scale), [matrix.array(array) for array in Array])
