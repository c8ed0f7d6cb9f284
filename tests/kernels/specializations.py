"""`python -m tests.kernels.specializations DEVICE`: which kernels would compile after the warm-up, on no GPU at all.

Triton compiles a kernel again when types, constants or what it knows of an argument (1, a multiple of 16) differ. Here
launches only note that key, as the CUDA back end makes it, with the table of DEVICE. Prints one JSON object.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit

from strata.kernels.expert_rows import triton as expert_kernels
from strata.kernels.expert_rows import window as window_kernels
from strata.kernels.packed_rows import joined as joined_kernels
from strata.kernels.packed_rows import triton as packed_kernels
from tests.kernels.row_counts import run_every_count, warm_up

BACKEND = make_backend(GPUTarget("cuda", 90, 32))


def note_launches(keys: set[tuple[str, str]]) -> None:
    """Replace every launch by adding its key to `keys`."""

    @cache
    def binder_of(kernel: jit.JITFunction) -> Callable[..., Any]:
        return jit.create_function_from_signature(kernel.signature, kernel.params, BACKEND)

    def run(self: jit.JITFunction, *args: object, grid: object, warmup: bool, **options: object) -> None:
        _, specialization, rest = binder_of(self)(*args, **options)
        keys.add((self.__name__, jit.compute_cache_key({}, specialization, rest)))

    jit.JITFunction.run = run


def main() -> None:
    keys: set[tuple[str, str]] = set()
    note_launches(keys)
    for kernels in (packed_kernels, joined_kernels, expert_kernels, window_kernels):
        kernels.device_name = lambda device: sys.argv[1]
    warm_up(torch.device("cpu"))
    warm = set(keys)
    run_every_count(torch.device("cpu"))
    print(json.dumps({"warm": sorted(name for name, _ in warm), "late": sorted(name for name, _ in keys - warm)}))


if __name__ == "__main__":
    main()
