"""Which instruction set the native library computes with. Knows their names; results never depend on them."""

from collections.abc import Iterator
from contextlib import contextmanager

from strata.native import library

BEST = -1
NAMES = ("scalar", "avx2", "avx_vnni", "avx512_vnni")  # the number of a name is its place


def current() -> str:
    """The name of the path in use."""
    return NAMES[library.load().strata_current_isa()]


def available() -> tuple[str, ...]:
    """The paths that this CPU can run, scalar first."""
    features = set(library.cpu_features())
    vector = {"avx2", "fma", "f16c"}
    needs = {
        "scalar": set[str](),
        "avx2": vector,
        "avx_vnni": vector | {"avx_vnni"},
        "avx512_vnni": vector | {"avx512", "avx512_vnni"},
    }
    return tuple(name for name in NAMES if needs[name] <= features)


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Compute with this path inside the block, then with the one before. For tests and benches; the whole process."""
    before = library.load().strata_current_isa()
    library.check(library.load().strata_force_isa(NAMES.index(name)))
    try:
        yield
    finally:
        library.check(library.load().strata_force_isa(before))
