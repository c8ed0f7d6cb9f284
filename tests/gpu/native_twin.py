"""The C++ library as a third opinion: built beside this run if it is not there, every instruction set that the CPU has.

Knows how to call it with packed matrices; knows no GPU. Where it cannot be built, `NativeTwin.open` says why.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch

from strata.kernels.packed_rows.native import native_matrix
from strata.quant.packed import PackedMatrix
from tests.native_silu import silu_mul

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu-native"


def start_build() -> "subprocess.Popen[str]":
    """Configure and compile in the background."""
    jobs = str(os.cpu_count() or 1)
    command = f"cmake -S '{ROOT}' -B '{BUILD}' -DCMAKE_BUILD_TYPE=Release && cmake --build '{BUILD}' -j {jobs}"
    return subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class NativeTwin:
    """The library, loaded, with a pool of threads."""

    def __init__(self) -> None:
        """Raises where the library does not load: see `open`."""
        import strata.native
        from strata.native import isa, library, matrices, pool

        if not library.is_available():
            strata.native.__path__.append(str(BUILD))
        library.load()
        self._isa, self._matrices, self._library = isa, matrices, library
        self._pool = pool.Pool(min(4, os.cpu_count() or 1))
        self.paths: tuple[str, ...] = isa.available()

    @classmethod
    def open(cls, build: "subprocess.Popen[str]") -> "tuple[NativeTwin | None, str]":
        """The twin and its instruction sets, or None and the reason."""
        output, _ = build.communicate()
        if build.returncode:
            return None, "did not build: " + output.strip()[-300:]
        try:
            twin = cls()
        except Exception as reason:  # whatever it is, the gate goes on with the definition alone and says so
            return None, f"does not load: {reason}"
        return twin, ", ".join(twin.paths)

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    def matrix_rows(self, matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
        """The rows by every instruction set; raises AssertionError where two differ."""
        native = native_matrix(matrix)
        return self._agreed(lambda: self._matrices.matrix_rows(self._pool, native, x))

    def expert_rows(self, gate: PackedMatrix, up: PackedMatrix, down: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
        """One expert, from the library's matrices and its silu."""
        natives = [native_matrix(matrix) for matrix in (gate, up, down)]

        def run() -> torch.Tensor:
            g, u = self._matrices.matrices_rows(self._pool, natives[:2], x)
            return self._matrices.matrix_rows(self._pool, natives[2], silu_mul(g, u))

        return self._agreed(run)

    def _agreed(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        results = []
        for path in self.paths:
            with self._isa.forced(path):
                results.append(run())
        for path, result in zip(self.paths, results, strict=True):
            is_same = torch.equal(result.view(torch.int32), results[0].view(torch.int32))
            assert is_same, f"{path} differs from {self.paths[0]}"
        return results[0]
