"""Experts that stay in a model's GGUF files: where they lie there, and the library's cache of those that were read.

Knows files, formats and blobs; knows no window and not who has a seat. A file that is no longer what it was when the
model was opened gives nothing.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.errors import WeightFileError
from strata.experts.host_memory import take_host_memory
from strata.experts.pool import native_layout
from strata.experts.sources import ExpertSource, PublishedExperts
from strata.hardware import read_cpu
from strata.native import abi, library
from strata.native.closing import Closing
from strata.native.file_map import FileMap, map_of
from strata.native.packing import packs
from strata.native.pool import Pool
from strata.quant.formats import by_gguf_type, by_name
from strata.quant.layout import BlobLayout
from strata.types import ProgressCallback
from strata.weights.gguf_source import GgufSource
from strata.weights.source import WeightSource


@dataclass(frozen=True)
class FiledLayer:
    """The experts of one layer in the files: the blobs that they become, and gate, up and down as published."""

    name: str  # the layer's prefix
    layout: BlobLayout
    published: PublishedExperts

    @property
    def count(self) -> int:
        """Experts of the layer."""
        return self.published[0].data.shape[0]


@dataclass(frozen=True)
class ReadCounters:
    """What was read because a window asked for it."""

    experts: int = 0
    bytes: int = 0  # as they lie in the files
    ns: int = 0


def filing_problem(source: WeightSource, layers: Sequence[str]) -> str | None:
    """Why the experts of these layers cannot be read from the model's files while it runs, in a sentence; None if
    they can. Reads no weight."""
    if not isinstance(source, GgufSource):
        return "experts are read from GGUF files, and this model has none: `strata convert` makes one"
    if not library.is_available():
        return "experts are read from files by the C++ library, which was not built"
    for layer in layers:
        for part in ("gate_up_proj", "down_proj"):
            for kind in source.stored_types(f"{layer}experts.{part}"):
                number = by_name(kind).gguf_type
                if number is None or not packs(number):
                    return (
                        f"the experts of {layer[:-1]} are stored as {kind}, which the C++ library does not pack: a "
                        "file of another type (`strata convert`), or memory for all experts, would do"
                    )
    return None


def filed_layers(source: ExpertSource) -> tuple[FiledLayer, ...]:
    """All layers of a source whose experts are blocks of a file. Raises ValueError for one that has others."""
    found = []
    for name in source.layers():
        published = source.published(name)
        if published is None:
            raise ValueError(f"the experts of {name[:-1]} are no blocks of a file")
        found.append(FiledLayer(name, source.layout(name), published))
    return tuple(found)


class ReadCache(Closing):
    """The files' experts and memory for those that are read; see `strata_read_cache_create`.

    Keeps the files open and the memory alive. Used by one thread at a time, but for `counters`.
    """

    def __init__(self, layers: Sequence[FiledLayer], memory: torch.Tensor) -> None:
        """memory: uint8, for whole blobs of the largest size; what is read on request lies nowhere else.

        Raises EngineError for what the library does not pack to these layouts.
        """
        self._cache: ctypes.c_void_p | None = None
        self.memory = memory
        self.layers = tuple(layers)
        files: dict[int, int] = {}  # descriptor -> its number in `opened`
        opened: list[abi.ModelFile] = []
        described = [_described(layer, files, opened) for layer in layers]
        made = ctypes.c_void_p()
        create = library.load().strata_read_cache_create
        filed, of_layers = (abi.ModelFile * len(opened))(*opened), (abi.FileLayer * len(described))(*described)
        room = memory.data_ptr() if memory.numel() else None
        library.check(create(filed, len(opened), of_layers, len(described), room, memory.numel(), ctypes.byref(made)))
        self._cache = made

    @classmethod
    def create(
        cls,
        layers: Sequence[FiledLayer],
        cache_bytes: int,
        threads: int | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> "ReadCache":
        """Take the memory; nothing is read. Raises ModelError if the system gives no more."""
        workers = threads or read_cpu().usable_cores
        (memory,) = take_host_memory([cache_bytes], workers, on_progress=on_progress).pieces
        return cls(layers, memory)

    @property
    def handle(self) -> ctypes.c_void_p | None:
        """The library's."""
        return self._cache

    def fill(self, pool: Pool, layer: int, experts: Sequence[int], blobs: Sequence[torch.Tensor]) -> None:
        """Read experts of a layer to blobs, uint8 of their size at multiples of 64 bytes, outside of the cache.

        Raises WeightFileError, with the layer, if the files do not give them.
        """
        numbers = (ctypes.c_int32 * len(experts))(*experts)
        targets = (ctypes.c_void_p * len(blobs))(*(blob.data_ptr() for blob in blobs))
        if library.load().strata_read_cache_fill(self._cache, pool.handle, layer, numbers, targets, len(experts)):
            sentence = library.load().strata_last_error().decode(errors="replace")
            raise WeightFileError(f"the experts of {self.layers[layer].name[:-1]} cannot be read: {sentence}")

    def counters(self) -> ReadCounters:
        """So far; from any thread."""
        found = abi.ReadCounters()
        library.check(library.load().strata_read_cache_counters(self._cache, ctypes.byref(found)))
        return ReadCounters(found.experts, found.bytes, found.ns)

    def close(self) -> None:
        """Let go; nobody uses it any more."""
        cache, self._cache = self._cache, None
        if cache is not None:
            library.load().strata_read_cache_destroy(cache)


def _described(layer: FiledLayer, files: dict[int, int], opened: list[abi.ModelFile]) -> abi.FileLayer:
    """A layer for the library, which copies it; files that are new are added."""
    factors = torch.empty(layer.count, len(layer.published), dtype=torch.float32)
    made = abi.FileLayer(expert_count=layer.count, factors=factors.data_ptr())
    made.layout = ctypes.pointer(native_layout(layer.layout))
    for part, (raw, wanted) in enumerate(zip(layer.published, layer.layout.matrices, strict=True)):
        kind = by_gguf_type(raw.type.number)
        if kind.layout(raw.data.shape[1], raw.columns) != wanted:
            raise ValueError(f"{layer.name[:-1]}: blobs of another layout than {raw.type.name} becomes")
        factors[:, part] = torch.tensor([kind.factor(by) for by in raw.post_scales])
        file, begin = map_of(raw.data) or (None, 0)
        if not isinstance(file, FileMap):
            raise ValueError(f"{layer.name[:-1]}: its experts are no view of a file")
        if file.descriptor not in files:
            files[file.descriptor] = len(opened)
            opened.append(_file(file))
        made.parts[part] = abi.FilePart(raw.type.number, files[file.descriptor], begin, raw.data.strides[0])
    made.kept = factors  # until the library has copied it
    return made


def _file(file: FileMap) -> abi.ModelFile:
    return abi.ModelFile(file.path.name.encode(errors="replace"), file.descriptor, 0, abi.FileStamp.of(file.opened))
