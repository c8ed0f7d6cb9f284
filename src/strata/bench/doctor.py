"""What this PC is and what it gives: facts, versions, the state of the kernel cache, measured ceilings.

Reads and measures; advises nothing and knows no model.
"""

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from strata.bench.ceilings import Ceilings, measure_ceilings
from strata.errors import EngineError
from strata.hardware import Hardware, NumaNode, read_gpu_driver, read_hardware, read_numa_nodes
from strata.kernels.compiled import CachedKernels, cached_kernels
from strata.native import isa, library
from strata.types import ProgressCallback


@dataclass(frozen=True)
class NativePaths:
    """The C++ library: which path it takes here, which this processor could take, or why it cannot be loaded."""

    in_use: str | None
    available: tuple[str, ...]
    problem: str | None = None


@dataclass(frozen=True)
class Examination:
    """Everything that `strata doctor` knows of this PC."""

    hardware: Hardware
    nodes: tuple[NumaNode, ...]
    gpu_driver: str | None
    cuda_runtime: str | None  # that torch was built for
    versions: dict[str, str | None]  # None: not installed
    native: NativePaths
    kernel_cache: CachedKernels
    ceilings: Ceilings


def examine(
    threads: Sequence[int], limit_s: float, kernel_folder: Path, on_progress: ProgressCallback | None = None
) -> Examination:
    """Look and measure, for about `limit_s` seconds at most. threads: the numbers that RAM is read with."""
    hardware = read_hardware()
    return Examination(
        hardware=hardware,
        nodes=read_numa_nodes(),
        gpu_driver=read_gpu_driver(),
        cuda_runtime=torch.version.cuda,
        versions=read_versions(),
        native=read_native_paths(),
        kernel_cache=cached_kernels(kernel_folder),
        ceilings=measure_ceilings(threads, bool(hardware.gpus) and _has_triton(), limit_s, on_progress),
    )


def read_versions() -> dict[str, str | None]:
    """Of what computes."""
    packages = {name: _version(name) for name in ("torch", "triton", "numpy")}
    native = f"ABI {library.ABI_VERSION}" if library.is_available() else None
    return {"python": platform.python_version(), **packages, "C++ library": native}


def read_native_paths() -> NativePaths:
    """Which instructions the C++ library computes with."""
    try:
        return NativePaths(isa.current(), isa.available())
    except EngineError as reason:
        return NativePaths(None, (), str(reason))


def _has_triton() -> bool:
    return _version("triton") is not None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
