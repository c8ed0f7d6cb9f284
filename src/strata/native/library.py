"""Finds, loads and checks the native library. Knows its C ABI; does not know who calls it or why.

The package also works without it (an installation on a machine without a compiler): ask `is_available()`,
or call `load()` and pass its sentence on.
"""

import ctypes
import functools
from pathlib import Path

import strata.native
from strata.errors import EngineError
from strata.native import abi

ABI_VERSION = 9
UNREADABLE = 5  # STRATA_UNREADABLE: the sentence is about a model's file
LIBRARY_NAME = "libstrata_native.so"

# Bit n of strata_cpu_features() is the n-th name; csrc/cpu_features.cpp holds the same list.
CPU_FEATURES = (
    "sse4.1",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
)


def find_library() -> Path | None:
    """Where the built library lies: beside this package, or beside its installed twin in an editable installation."""
    for folder in strata.native.__path__:
        candidate = Path(folder) / LIBRARY_NAME
        if candidate.is_file():
            return candidate
    return None


def is_available() -> bool:
    """Whether the library was built with this installation."""
    return find_library() is not None


@functools.cache
def load() -> ctypes.CDLL:
    """The loaded library, its functions typed. Raises EngineError if it is missing or does not fit this package."""
    path = find_library()
    if path is None:
        raise EngineError(
            f"the native library {LIBRARY_NAME} is missing: install a C++ compiler, then install strata again"
        )
    try:
        library = ctypes.CDLL(str(path))
        library.strata_native_abi_version.restype = ctypes.c_int32
        found = library.strata_native_abi_version()
        if found == ABI_VERSION:
            abi.declare(library)
    except (OSError, AttributeError) as reason:
        raise EngineError(f"the native library {path} cannot be loaded: {reason}") from reason
    if found != ABI_VERSION:
        raise EngineError(
            f"the native library {path} has ABI version {found}, this package needs {ABI_VERSION}: install strata again"
        )
    return library


def check(code: int) -> None:
    """Turn the number that a function of the ABI returned into an EngineError with the library's sentence."""
    if code:
        sentence = load().strata_last_error().decode(errors="replace")
        raise EngineError(sentence if code == UNREADABLE else f"the native library refused: {sentence}")


def cpu_features() -> tuple[str, ...]:
    """Names of the instruction sets that this CPU has and the system lets us use, in the order of CPU_FEATURES."""
    bits = load().strata_cpu_features()
    return tuple(name for index, name in enumerate(CPU_FEATURES) if bits >> index & 1)
