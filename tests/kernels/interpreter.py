"""Whether Triton runs here in its interpreter, with an fma that rounds once, and without what costs time and finds
nothing. Knows no kernel."""

import importlib.util
from dataclasses import replace

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


if _is_ready():
    _leave_out_overflow_checks()

needs_interpreter = pytest.mark.skipif(
    not _is_ready(),
    reason="needs TRITON_INTERPRET=1 and Triton 3.9, whose interpreter rounds fma once: make interpreter",
)
