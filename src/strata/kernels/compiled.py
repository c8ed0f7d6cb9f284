"""What Triton has compiled: where its files lie, how many there are, and whether something is compiled just now.

Knows no kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class CachedKernels:
    """The folder in which compiled kernels are kept between runs."""

    folder: Path
    names: tuple[str, ...]  # one for each compiled form of a kernel, sorted
    total_bytes: int


def use_cache(folder: Path) -> None:
    """From now on Triton keeps what it compiles in this folder, and looks there before it compiles."""
    import triton

    folder.mkdir(parents=True, exist_ok=True)
    triton.knobs.cache.dir = str(folder)


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
