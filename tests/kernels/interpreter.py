"""Whether Triton runs here in its interpreter, with an fma that rounds once and a bfloat16 that is a float, and without
what costs time and finds nothing. Knows no kernel."""

import importlib.util
from dataclasses import replace
from typing import Any

import pytest


def _is_ready() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return version >= (3, 9) and bool(triton.knobs.runtime.interpret)


def _leave_out_overflow_checks() -> None:
    """Every sum and product of integers is checked in int64 too, of which the interpreter without `debug` uses nothing:
    a third of its time."""
    from triton.runtime.interpreter import interpreter_builder

    assert not interpreter_builder.options.debug
    interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)


def _make_bfloat16_a_float() -> None:
    """Round float32 to the nearest as GPUs do, where the interpreter cuts; multiply values, where it takes bits."""
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast_others, multiply = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast(self: Any, src: Any, dst_type: Any) -> Any:
        kinds = (src.dtype.scalar, dst_type.scalar)
        if kinds == (tl.bfloat16, tl.float32):
            return TensorHandle((src.data.astype(numpy.uint32) << 16).view(numpy.float32), tl.float32)
        if kinds != (tl.float32, tl.bfloat16):
            return cast_others(self, src, dst_type)
        bits = numpy.ascontiguousarray(src.data).view(numpy.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nearest = numpy.where(numpy.isnan(src.data), 0x7FC0, nearest)
        return TensorHandle(nearest.astype(numpy.uint16), tl.bfloat16)

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        a, b = (cast(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return multiply(self, a, b, d, input_precision, max_num_imprecise_acc)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = cast, dot


if _is_ready():
    _leave_out_overflow_checks()
    _make_bfloat16_a_float()

needs_interpreter = pytest.mark.skipif(
    not _is_ready(),
    reason="needs TRITON_INTERPRET=1 and Triton 3.9, whose interpreter rounds fma once: make interpreter",
)
