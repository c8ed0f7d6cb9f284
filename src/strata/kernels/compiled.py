"""What Triton has compiled: where its files lie, how many there are, and whether something is compiled just now.

Knows no kernel.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import strata.kernels


@dataclass(frozen=True)
class CachedKernels:
    """The folder in which compiled kernels are kept between runs."""

    folder: Path
    names: tuple[str, ...]  # one for each compiled form of a kernel, sorted
    total_bytes: int


def use_cache(folder: Path) -> None:
    """From now on Triton keeps what it compiles in this folder, and looks there before it compiles.

    To be called before this process launches a kernel, so that it finds what others compiled: see `settle_keys`.
    """
    import triton

    folder.mkdir(parents=True, exist_ok=True)
    triton.knobs.cache.dir = str(folder)
    settle_keys()


def settle_keys() -> None:
    """Give every kernel of this process the key that it has in others which begin with this too: half a second.

    Triton's key of a function holds the global constants of its callees only if these had a key before, and a key is
    made once: it would depend on what a process happens to launch first, and what one compiled another would not find.
    """
    import triton

    for module in pkgutil.walk_packages(strata.kernels.__path__, "strata.kernels."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, triton.JITFunction):
                hash(value)  # of its key, which is then made


def cached_kernels(folder: Path) -> CachedKernels:
    """What lies in such a folder; nothing if there is no folder."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    names = sorted(path.stem for path in files if path.suffix == ".cubin")
    return CachedKernels(folder, tuple(names), sum(path.stat().st_size for path in files))


@dataclass
class Compilations:
    """Kernels that Triton made ready in this process, by name, each form once."""

    compiled: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)  # compiled before: they were in the folder

    @property
    def count(self) -> int:
        """Of both."""
        return len(self.compiled) + len(self.fetched)


@contextmanager
def noting_compilations() -> Iterator[Compilations]:
    """What is compiled, or fetched compiled from the folder, inside. A kernel that this process has is neither."""
    import triton

    noted = Compilations()

    def note(*, src: object, cache_hit: bool, **_: object) -> None:
        (noted.fetched if cache_hit else noted.compiled).append(str(getattr(src, "name", src)))

    before = triton.knobs.compilation.listener
    triton.knobs.compilation.listener = note
    try:
        yield noted
    finally:
        triton.knobs.compilation.listener = before
