"""A file that holds nothing but experts, as `GgufExperts` asks of a GGUF file, and ways in which it goes wrong.

Two layers whose blobs differ in size; gate and up lie in one tensor. Knows no test.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from strata.experts.sources import GgufExperts
from strata.native.file_map import FileMap
from strata.quant.formats import by_name
from strata.weights.gguf_source import RawExperts, RawMatrix
from strata.weights.gguf_types import GgmlType
from tests.quant.blocks import mild_blocks

EXPERTS, WIDTH, HIDDEN = 6, 64, 256
KINDS = {"model.layers.0.mlp.": ("Q4_K", "Q5_1"), "model.layers.1.mlp.": ("Q8_0", "Q8_0")}  # gate and up, down
NAMES = tuple(KINDS)


class FileOfExperts:
    """Blocks at random; each expert has a factor of its own beside it."""

    directory = Path("some.gguf")

    def __init__(
        self,
        path: Path,
        experts: int = EXPERTS,
        width: int = WIDTH,
        hidden: int = HIDDEN,
        spoilt: tuple[int, int] | None = None,
    ) -> None:
        """spoilt: the layer and the number of an expert with a scale that is no number."""
        sizes = {"gate_up_proj": (2 * width, hidden), "down_proj": (hidden, width)}
        places: dict[str, tuple[str, int, int, int]] = {}  # tensor -> format, rows, columns, first byte
        with path.open("wb") as out:
            for seed, (layer, (inner, outer)) in enumerate(KINDS.items()):
                for (name, (rows, columns)), kind in zip(sizes.items(), (inner, outer), strict=True):
                    places[f"{layer}experts.{name}"] = kind, rows, columns, out.tell()
                    kept = by_name(kind)
                    blocks = mild_blocks(kept, experts * rows * columns // kept.block_weights, seed)
                    if spoilt is not None and spoilt[0] == seed:
                        blocks[spoilt[1] * len(blocks) // experts, kept.half_scales[0] :][:2] = (0xFF, 0x7F)
                    out.write(blocks.tobytes() + bytes(7))
        self.path, self._places, self._experts = path, places, experts
        self.map = FileMap(os.open(path, os.O_RDONLY), path)
        self._flat = np.frombuffer(self.map, np.uint8)

    def source(self) -> GgufExperts:
        """Its experts."""
        return GgufExperts(self)  # type: ignore[arg-type]

    def names(self) -> list[str]:
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        _, rows, columns, _ = self._places[name]
        return self._experts, rows, columns

    def raw_experts(self, name: str) -> tuple[RawExperts]:
        kind, rows, columns, begin = self._places[name]
        kept = by_name(kind)
        size = self._experts * rows * kept.row_bytes(columns)
        data = self._flat[begin : begin + size].reshape(self._experts, rows, -1)
        number = GgmlType(kept.gguf_type, kind, kept.block_weights, kept.block_bytes)
        return (RawExperts(number, columns, data, tuple(2.0**-each for each in range(self._experts))),)

    def raw_expert(self, name: str, expert: int) -> tuple[RawMatrix]:
        (found,) = self.raw_experts(name)
        return (RawMatrix(found.type, found.columns, found.data[expert], found.post_scales[expert]),)


@contextmanager
def unreadable(file: FileOfExperts) -> Iterator[None]:
    """Inside the block the open descriptor gives no byte, as a broken disk's; the file itself is what it was."""
    before, closed = os.dup(file.map.descriptor), os.open(file.path, os.O_WRONLY)
    os.dup2(closed, file.map.descriptor)
    try:
        yield
    finally:
        os.dup2(before, file.map.descriptor)
        os.close(before)
        os.close(closed)


@contextmanager
def touched(file: FileOfExperts) -> Iterator[None]:
    """Inside the block the file says that somebody wrote to it."""
    before = os.stat(file.path)
    os.utime(file.path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    try:
        yield
    finally:
        os.utime(file.path, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def cut(file: FileOfExperts) -> Iterator[None]:
    """Inside the block the file ends early."""
    before, content = os.stat(file.path), file.path.read_bytes()
    os.truncate(file.path, 100)
    try:
        yield
    finally:
        file.path.write_bytes(content)
        os.utime(file.path, ns=(before.st_atime_ns, before.st_mtime_ns))
