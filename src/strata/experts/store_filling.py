"""The experts of a store's layers brought to where they belong, before any of them moves: packed, or read and packed.

Knows the roads of a load and how far it has come; who has a seat and who a place is the store's matter.
"""

from collections.abc import Iterable

import numpy as np

from strata.experts.cache import ExpertId
from strata.experts.expert_files import ReadCache
from strata.experts.packing import BATCH_BYTES, STAGE, PackingThreads, fill_blobs
from strata.experts.sources import ExpertSource
from strata.experts.store import ExpertStore
from strata.experts.uploading import Staging
from strata.types import ProgressCallback


def fill_layer(
    store: ExpertStore,
    layer: int,
    source: ExpertSource,
    threads: PackingThreads,
    staging: Staging,
    on_progress: ProgressCallback | None = None,
) -> None:
    """Pack a layer's experts to their seats and places. Returns when all have arrived.

    Raises WeightFileError for what cannot be used.
    """
    filling = _Filling(store, layer, threads, staging, on_progress)
    if store.reads is not None:
        filling.fill_from_files(store.reads)
    elif store.is_exclusive:
        filling.fill_through_staging(source)
    else:
        filling.fill_in_place(source)
    staging.wait()


class _Filling:
    """One layer on its way."""

    def __init__(
        self,
        store: ExpertStore,
        layer: int,
        threads: PackingThreads,
        staging: Staging,
        on_progress: ProgressCallback | None,
    ) -> None:
        self._store, self._layer, self._threads, self._staging = store, layer, threads, staging
        self._on_progress = on_progress
        self._size = int(store.blob_bytes[layer])
        self._step = max(1, BATCH_BYTES // self._size)

    def fill_in_place(self, source: ExpertSource) -> None:
        """Into main memory, whose copies the seats are."""
        store, everyone = self._store, range(self._store.experts)
        (memory,) = store.place_runs(self._layer, everyone)  # a layer lies in one piece until somebody moves
        blobs = memory.view(store.experts, self._size)
        for done in fill_blobs(source, store.layers[self._layer], 0, blobs, self._threads):
            self._tell(done, store.experts)
        for each, blob in zip(self._ids(everyone), blobs, strict=True):
            seat = store.seat(each)
            if seat is not None:
                self._staging.send(blob if store.is_pinned else self._staging.take(self._size).copy_(blob), seat)

    def fill_through_staging(self, source: ExpertSource) -> None:
        """Batch by batch, each expert to its seat or to its place."""
        store, experts = self._store, self._store.experts
        for first in range(0, experts, self._step):
            count = min(self._step, experts - first)
            batch = self._staging.take(count * self._size).view(count, self._size)
            for done in fill_blobs(source, store.layers[self._layer], first, batch, self._threads):
                self._tell(first + done, experts)
            for each, blob in zip(self._ids(range(first, first + count)), batch, strict=True):
                seat, place = store.seat(each), store.place(each)
                if place is not None:
                    place.copy_(blob)
                if seat is not None:
                    self._staging.send(blob, seat)

    def fill_from_files(self, reads: ReadCache) -> None:
        """Only those that have a seat or a place."""
        assert self._threads.pool is not None, "who plans experts in files has asked for the library"
        wanted = np.flatnonzero(self._store.may_move[self._layer]).tolist()
        for first in range(0, len(wanted), self._step):
            some = wanted[first : first + self._step]
            buffer = self._staging.take(len(some) * self._size).view(len(some), self._size)
            places = [self._store.place(each) for each in self._ids(some)]
            blobs = [spare if place is None else place for place, spare in zip(places, buffer, strict=True)]
            reads.fill(self._threads.pool, self._layer, some, blobs)
            for each, blob in zip(self._ids(some), blobs, strict=True):
                seat = self._store.seat(each)
                if seat is not None:
                    self._staging.send(blob, seat)
            self._tell(first + len(some), len(wanted))
        if not wanted:
            self._tell(1, 1)

    def _ids(self, experts: Iterable[int]) -> list[ExpertId]:
        return [ExpertId(self._layer, expert) for expert in experts]

    def _tell(self, done: int, of: int) -> None:
        if self._on_progress is not None:
            self._on_progress(STAGE, done * self._size, of * self._size)
