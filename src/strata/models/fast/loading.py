"""A model's weights held packed, once, for the C++ library: see `Weights`. Windows and reads use the same bytes.

Knows which tensors are wanted and what was read already; how a tensor is packed is in `packing.py`.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from strata.experts.arena import Arena, load_arena
from strata.experts.expert_files import ReadCache, filed_layers
from strata.experts.sources import expert_layers
from strata.kernels.packed_rows.native import native_matrix
from strata.models.blocks.linear import Weight
from strata.models.blocks.moe import Experts
from strata.models.fast.held import FiledExperts, PackedExperts, PackedMatrices, PackedTable
from strata.models.fast.packing import experts_of, is_matrix, pack_tensor, packed_bytes, take_rows
from strata.models.weights import TableGather, TakenRows
from strata.native.matrices import NativeMatrix
from strata.native.pool import Pool
from strata.quant.packer import Packer
from strata.types import ProgressCallback
from strata.weights.source import WeightSource

_STAGE = "loading the model"
MOST_TABLE_PARTS = 4  # a table in more pieces is put together


@dataclass(frozen=True)
class _Held:
    """A matrix that was packed; its parts lie under one another."""

    parts: tuple[NativeMatrix, ...]
    order: torch.Tensor | None


class PackedWeights:
    """See `Weights`. Made by `open_packed_weights`."""

    dtype = torch.float32

    def __init__(
        self,
        source: WeightSource,
        names: Collection[str],
        pool: Pool,
        arena: Arena | None,
        reads: ReadCache | None = None,
    ) -> None:
        self.pool = pool
        self.reads = reads
        self._source = source
        self._names = names
        self._arena = arena
        self._held: dict[str, _Held] = {}  # a tied head and a draft layer ask for a matrix again
        self._on_progress: ProgressCallback | None = None
        self._bytes_done = self._bytes_total = 0

    def report_progress(self, on_progress: ProgressCallback | None) -> None:
        """From now on tell `on_progress` how far the packing of the wanted matrices has come."""
        self._on_progress = on_progress
        self._bytes_total = sum(self.held_bytes(name) for name in self._names if _is_reported(name, self.shape(name)))

    def names(self) -> Collection[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._source.shape(name))

    def values(self, name: str) -> torch.Tensor:
        return self._source.tensor(name, self.dtype).contiguous()

    def matrix(self, *parts: str | TakenRows) -> Weight:
        if len(parts) == 1 and isinstance(parts[0], str):
            held = self._hold(parts[0])
            return PackedMatrices(self.pool, held.parts, held.order)
        return PackedMatrices(self.pool, [matrix for part in parts for matrix in self._part(part)])

    def table(self, name: str) -> TableGather:
        return PackedTable(PackedMatrices(self.pool, self._hold(name).parts))

    def table_in_files(self, name: str) -> TableGather:
        return lambda row_ids: self._source.rows(name, row_ids, self.dtype)

    def experts(self, prefix: str) -> Experts:
        if self.reads is not None:
            layers = [layer.name for layer in self.reads.layers]
            return FiledExperts(self.pool, self.reads, layers.index(prefix))
        assert self._arena is not None
        return PackedExperts(self.pool, self._arena, prefix)

    def held_bytes(self, name: str) -> int:
        return packed_bytes(self._source, name)

    def _part(self, part: str | TakenRows) -> tuple[NativeMatrix, ...]:
        if isinstance(part, str):
            held = self._hold(part)
            assert held.order is None  # only a matrix that has its input for itself stands in an order of its own
            return held.parts
        packed = pack_tensor(self._source, part.name, Packer(self.pool))
        self._advance(part.name)
        return (native_matrix(take_rows(packed.parts, part.rows)),)

    def _hold(self, name: str) -> _Held:
        if name not in self._held:
            packed = pack_tensor(self._source, name, Packer(self.pool))
            parts = packed.parts
            if len(parts) > MOST_TABLE_PARTS:
                rows = sum(part.layout.rows for part in parts)
                parts = (take_rows(parts, torch.arange(rows)),)
            self._held[name] = _Held(tuple(native_matrix(part) for part in parts), packed.order)
            self._advance(name)
        return self._held[name]

    def _advance(self, name: str) -> None:
        if self._on_progress is not None:
            self._bytes_done = min(self._bytes_done + self.held_bytes(name), self._bytes_total)
            self._on_progress(_STAGE, self._bytes_done, self._bytes_total)


def open_packed_weights(
    source: WeightSource,
    names: Collection[str],
    pool: Pool,
    on_progress: ProgressCallback | None = None,
    cache_bytes: int | None = None,
) -> PackedWeights:
    """Weights whose names are among `names`; their experts are packed now, everything else when it is asked for.

    cache_bytes: experts stay in the model's files and are read to so much memory; None: they are packed now. Raises
    ModelError if there is no memory for them.
    """
    layers = expert_layers(names)
    arena = reads = None
    if layers and cache_bytes is not None:
        filed = filed_layers(experts_of(source, layers))
        reads = ReadCache.create(filed, cache_bytes, pool.threads, on_progress)
    elif layers:
        arena = load_arena(experts_of(source, layers), on_progress=on_progress)
    weights = PackedWeights(source, names, pool, arena, reads)
    weights.report_progress(on_progress)
    return weights


def _is_reported(name: str, shape: tuple[int, ...]) -> bool:
    """A matrix that is surely held: experts have a progress of their own, a table may stay in its files."""
    return is_matrix(shape) and len(shape) == 2 and not name.endswith(".ngram_embedding.weight")
