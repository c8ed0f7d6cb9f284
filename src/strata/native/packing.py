"""Blocks of GGUF files into the tiles of packed matrices, by all threads of a pool. Knows addresses, no tensor.

Slow twin: `quant.formats.base.Format.to_packed` without a pool. A matrix that this road does not pack is left to it.
"""

import errno
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strata.native import abi, library
from strata.native.file_map import file_place, path_of
from strata.native.pool import Pool


@dataclass(frozen=True)
class Packing:
    """Equal matrices of one format, and where the first one's tiles go; the next one's `array_stride` further.

    Raises ValueError for bytes that do not lie as the library reads them.
    """

    type: int  # ggml's number
    columns: int
    data: np.ndarray  # [count, rows, row bytes] uint8: rows whole and one after another, matrices at any distance
    arrays: tuple[int | None, ...]  # addresses of codes, scales, super scales, mins, super mins
    array_stride: int = 0

    def __post_init__(self) -> None:
        data = self.data
        if data.dtype != np.uint8 or data.ndim != 3 or not data[:1].flags.c_contiguous:
            raise ValueError(f"data must be uint8 with whole rows, not {data.dtype} {data.shape} by {data.strides}")


@functools.cache
def packs(type_id: int) -> bool:
    """Whether the library packs a format, by ggml's number."""
    return bool(library.load().strata_packs(type_id))


def pack(pool: Pool, packings: Sequence[Packing]) -> list[int | None]:
    """Pack them; for each the lowest matrix that was refused, None if there is none.

    Refused is what is not finite and what needs another storage than its format's usual one. Raises OSError, with the
    file's name and words for a user, for a file that cannot be read, EngineError for what contradicts the contract.
    """
    jobs = (abi.Packing * len(packings))(*map(_job, packings))
    library.check(library.load().strata_pack(pool.handle, jobs, len(jobs)))
    for job, packing in zip(jobs, packings, strict=True):
        if job.read_error:
            raise OSError(job.read_error, _words_of(job.read_error), path_of(packing.data))
    return [None if job.refused < 0 else job.refused for job in jobs]


def _words_of(number: int) -> str:
    """ENODATA is the library's word for a file that ends before what its header promised when it was opened."""
    if number == errno.ENODATA:
        return "the file ended early: it was shortened while it was read"
    return os.strerror(number)


def _job(packing: Packing) -> abi.Packing:
    data = packing.data
    count, rows, _ = data.shape
    file, place = file_place(data) or (-1, data.ctypes.data)
    stride = data.strides[0] if count > 1 else 0
    job = abi.Packing(packing.type, rows, packing.columns, count, file)
    job.place, job.place_stride, job.array_stride = place, stride, packing.array_stride
    job.arrays[:] = packing.arrays
    return job
