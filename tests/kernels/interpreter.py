"""Whether Triton runs here in its interpreter, with an fma that rounds once. Knows no kernel."""

import importlib.util

import pytest


def _is_ready() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return version >= (3, 9) and bool(triton.knobs.runtime.interpret)


needs_interpreter = pytest.mark.skipif(
    not _is_ready(),
    reason="needs TRITON_INTERPRET=1 and Triton 3.9, whose interpreter rounds fma once: make interpreter",
)
