"""All experts of a model in one piece of main memory: filled layer by layer, then only looked at.

Knows blobs and where they lie; knows no file format. Memory is asked for once, after it is known to be there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.errors import ModelError
from strata.experts.blob import ExpertBlob, view_blob
from strata.experts.host_memory import anonymous_memory
from strata.experts.packing import STAGE, PackingThreads, fill_blobs
from strata.experts.sources import ExpertSource
from strata.hardware import MemoryFacts, read_memory
from strata.quant.layout import BlobLayout
from strata.types import ProgressCallback


@dataclass(frozen=True)
class ArenaLayer:
    """The experts of one layer: blobs of one size, one after another from `offset` on."""

    name: str
    count: int
    layout: BlobLayout
    offset: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all blobs."""
        return self.count * self.layout.total_bytes


class Arena:
    """Blobs by layer and expert. The memory lives as long as this object or any view of it."""

    def __init__(self, layers: Sequence[ArenaLayer], buffer: torch.Tensor) -> None:
        self.layers = {layer.name: layer for layer in layers}
        self.buffer = buffer  # uint8, whole; begins at a page

    def blobs(self, layer: str) -> torch.Tensor:
        """All experts of a layer, uint8 [experts, blob bytes]: a view."""
        found = self.layers[layer]
        return self.buffer[found.offset : found.offset + found.total_bytes].view(found.count, -1)

    def blob_bytes(self, layer: str, expert: int) -> torch.Tensor:
        """The bytes of one expert: a view."""
        found = self.layers[layer]
        if not 0 <= expert < found.count:
            raise IndexError(f"{layer} has {found.count} experts, no {expert}")
        begin = found.offset + expert * found.layout.total_bytes
        return self.buffer[begin : begin + found.layout.total_bytes]

    def expert(self, layer: str, expert: int) -> ExpertBlob:
        """One expert with its three matrices: views."""
        return view_blob(self.layers[layer].layout, self.blob_bytes(layer, expert))

    def address(self, layer: str, expert: int) -> int:
        """Where a blob begins in this process; a multiple of 256."""
        return self.blob_bytes(layer, expert).data_ptr()


def plan_arena(source: ExpertSource) -> list[ArenaLayer]:
    """Sizes and places of all blobs; no expert is kept."""
    layers, offset = [], 0
    for name in source.layers():
        layer = ArenaLayer(name, source.count(name), source.layout(name), offset)
        layers.append(layer)
        offset += layer.total_bytes
    return layers


def load_arena(
    source: ExpertSource,
    memory: MemoryFacts | None = None,
    on_progress: ProgressCallback | None = None,
    threads: int | None = None,
) -> Arena:
    """Pack every expert into one allocation, with as many threads as this process has cores if not said otherwise.

    At no moment is there more than the arena and the scratch of one expert a thread. Raises ModelError if the memory
    that may be used (`memory`; this PC's if None) does not hold the arena, WeightFileError for weights that cannot be
    used.
    """
    layers = plan_arena(source)
    require_memory(layers, read_memory() if memory is None else memory)
    arena = Arena(layers, anonymous_memory(sum(layer.total_bytes for layer in layers)))
    with PackingThreads(threads) as workers:
        for layer in layers:
            for done in fill_blobs(source, layer.name, 0, arena.blobs(layer.name), workers):
                if on_progress is not None:
                    on_progress(STAGE, layer.offset + done * layer.layout.total_bytes, arena.buffer.numel())
    return arena


def require_memory(layers: Sequence[ArenaLayer], memory: MemoryFacts) -> None:
    """Refuse an arena that does not fit, with what would."""
    needed = sum(layer.total_bytes for layer in layers)
    if not memory.total or needed <= memory.usable:
        return
    experts = sum(layer.count for layer in layers)
    weights = sum(layer.count * matrix.rows * matrix.columns for layer in layers for matrix in layer.layout.matrices)
    bits = memory.usable * 8 / weights
    limit = "a memory limit of this process" if memory.limit is not None else "this PC"
    raise ModelError(
        f"the {experts:,} experts take {needed / 2**30:.2f} GiB packed ({needed * 8 / weights:.2f} bits a weight), and "
        f"{limit} leaves {memory.usable / 2**30:.2f} GiB: a file with at most {bits:.1f} bits a weight would fit"
    )
