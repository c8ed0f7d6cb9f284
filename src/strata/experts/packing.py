"""Fills blobs with a source's experts: blocks of a GGUF file by the C++ library, everything else expert by expert.

Knows which road a layer takes and what threads do; knows not where the blobs lie.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from strata.errors import WeightFileError
from strata.experts.blob import write_blob, write_post_scales
from strata.experts.sources import ExpertSource, PublishedExperts
from strata.hardware import read_cpu
from strata.native import library
from strata.native.closing import Closing
from strata.native.file_map import read_ahead
from strata.native.packing import Packing, pack, packs
from strata.native.pool import Pool
from strata.quant.formats import by_gguf_type
from strata.quant.layout import Array, BlobLayout

STAGE = "packing the experts"
AHEAD = 16  # experts that are read ahead of the one that Python packs: some for each thread
BATCH_BYTES = 64 << 20  # the library packs at a time: milliseconds, after which Ctrl-C is heard and progress is told


class PackingThreads(Closing):
    """As many threads as this process has cores if not said otherwise: the library's where it was built, and Python's
    for what it does not pack, which start when they are needed."""

    pool: Pool | None = None
    _python: ThreadPoolExecutor | None = None

    def __init__(self, threads: int | None = None, *, is_native: bool = True) -> None:
        """is_native: False packs everything in Python, the slow twin of the library."""
        self.threads = threads or read_cpu().usable_cores
        if is_native and library.is_available():
            self.pool = Pool(self.threads, keeps_cores=False)

    @property
    def python(self) -> ThreadPoolExecutor:
        """Python's threads."""
        if self._python is None:
            self._python = ThreadPoolExecutor(self.threads, "strata-pack")
        return self._python

    def close(self) -> None:
        """End the threads; harmless the second time."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()
        python, self._python = self._python, None
        if python is not None:
            python.shutdown(cancel_futures=True)


def fill_blobs(
    source: ExpertSource, layer: str, first: int, blobs: torch.Tensor, threads: PackingThreads
) -> Iterator[int]:
    """Pack experts first, first + 1, .. of a layer into `blobs`, uint8 [experts, blob bytes] in main memory.

    Yields how many are done, again and again. Raises WeightFileError for what cannot be used; nothing runs on.
    """
    layout, done = source.layout(layer), 0
    published = source.published(layer) if threads.pool is not None else None
    if published is not None and threads.pool is not None and _is_packed_natively(published, layout):
        step = max(1, BATCH_BYTES // layout.total_bytes)
        for begin in range(0, len(blobs), step):
            batch = blobs[begin : begin + step]
            try:
                refused = _pack_natively(threads.pool, published, layout, first + begin, batch)
            except OSError as failure:
                raise WeightFileError(
                    f"{failure.filename}: the experts of {layer[:-1]} cannot be read: {failure.strerror}"
                ) from failure
            done += len(batch) if refused is None else refused
            yield done
            if refused is not None:
                break
    if done < len(blobs):  # Python says what is wrong with an expert that was refused
        yield from _fill_in_python(source, layer, range(first + done, first + len(blobs)), blobs[done:], threads, done)


def _is_packed_natively(published: PublishedExperts, layout: BlobLayout) -> bool:
    """Whether the library packs all three matrices, to the layout that the blobs have."""
    return all(
        packs(raw.type.number) and by_gguf_type(raw.type.number).layout(raw.data.shape[1], raw.columns) == wanted
        for raw, wanted in zip(published, layout.matrices, strict=True)
    )


def _pack_natively(
    pool: Pool, published: PublishedExperts, layout: BlobLayout, first: int, blobs: torch.Tensor
) -> int | None:
    """How many experts are good before the first one that is refused, if one is."""
    count, stride = blobs.shape
    packings, published_factors, factors = [], [], []
    for raw, matrix, places in zip(published, layout.matrices, layout.places(), strict=True):
        read_ahead(raw.data[first + count : first + 2 * count])
        arrays = tuple(
            blobs.data_ptr() + places[array].offset if matrix.array_bytes(array) else None for array in Array
        )
        packings.append(Packing(raw.type.number, raw.columns, raw.data[first : first + count], arrays, stride))
        kind = by_gguf_type(raw.type.number)
        published_factors.append(raw.post_scales[first : first + count])
        factors.append([kind.factor(by) for by in published_factors[-1]])
    write_post_scales(layout, blobs, torch.tensor(factors, dtype=torch.float32).t().contiguous())
    is_broken = ~torch.tensor(published_factors, dtype=torch.float32).isfinite().all(dim=0)
    broken = is_broken.nonzero()[:1, 0].tolist()
    refused = [*pack(pool, packings), *broken]
    return min((each for each in refused if each is not None), default=None)


def _fill_in_python(
    source: ExpertSource, layer: str, experts: range, blobs: torch.Tensor, threads: PackingThreads, done: int
) -> Iterator[int]:
    """The system reads ahead of the workers."""
    layout, end = source.layout(layer), experts.stop

    def read(expert: int) -> None:
        if expert < end:
            source.read_ahead(layer, expert)

    def fill(expert: int) -> None:
        read(expert + AHEAD)
        _fill(source, layer, layout, expert, blobs[expert - experts.start])
        source.forget(layer, expert)

    for expert in experts[:AHEAD]:
        read(expert)
    fill(experts.start)  # alone: a source may open the layer now
    yield done + 1
    started = [threads.python.submit(fill, expert) for expert in experts[1:]]
    try:
        for place, each in enumerate(started):
            each.result()
            yield done + 2 + place
    finally:
        for each in started:  # after an error nothing more is begun
            each.cancel()


def _fill(source: ExpertSource, layer: str, layout: BlobLayout, expert: int, blob: torch.Tensor) -> None:
    matrices = source.matrices(layer, expert)
    for found, wanted in zip(matrices, layout.matrices, strict=True):
        if found.layout != wanted:
            raise WeightFileError(
                f"expert {expert} of {layer[:-1]} does not fit beside expert 0: it needs "
                f"{found.layout.scale_kind.name} scales for {found.layout.code.value}"
            )
    write_blob(layout, blob, matrices)
