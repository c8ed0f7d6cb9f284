"""A mapped file that keeps its descriptor: the library reads its bytes, which costs no page faults. Knows no format."""

import mmap
import os
import weakref
from pathlib import Path

import numpy as np


class FileMap(mmap.mmap):
    """A whole file to read from, at least one byte of it. Owns the descriptor; views keep it alive."""

    descriptor: int
    path: Path  # as messages name it
    opened: os.stat_result  # of the file when it was mapped: whoever reads it later finds out whether it changed

    def __new__(cls, descriptor: int, path: Path) -> "FileMap":
        """Raises OSError if the system does not map it; the descriptor is then still the caller's."""
        made = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
        made.descriptor, made.path, made.opened = descriptor, path, os.fstat(descriptor)
        weakref.finalize(made, os.close, descriptor)
        return made


def map_of(view: np.ndarray) -> tuple[mmap.mmap, int] | None:
    """The memory map that an array is a view of, and the byte where the view begins; None for other memory."""
    base: object = view
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap):
        return None
    return base, view.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data


def path_of(view: np.ndarray) -> Path | None:
    """The file that an array is a view of; None for other memory."""
    found = map_of(view)
    return found[0].path if found is not None and isinstance(found[0], FileMap) else None


def file_place(view: np.ndarray) -> tuple[int, int] | None:
    """The descriptor and the byte of the file where a view of a `FileMap` begins; None for other memory."""
    found = map_of(view)
    return (found[0].descriptor, found[1]) if found is not None and isinstance(found[0], FileMap) else None


def read_ahead(view: np.ndarray) -> None:
    """Tell the system that the bytes of a view of a `FileMap` are read soon; other memory is left alone."""
    place = file_place(view)
    if place is not None and view.size and hasattr(os, "posix_fadvise"):
        size = 1 + sum((count - 1) * stride for count, stride in zip(view.shape, view.strides, strict=True))
        os.posix_fadvise(*place, size, os.POSIX_FADV_WILLNEED)
