"""Small GGUF files for tests, good ones and ones whose header is wrong on purpose. Knows no test."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from strata.quant.formats import by_name
from strata.weights.gguf_types import TYPE_OF_NAME
from strata.weights.gguf_writer import OutTensor, Pair, write_gguf

ARCHITECTURE = Pair("general.architecture", "text", "qwen3moe")


def out_tensor(name: str, values: torch.Tensor, kind: str = "F32") -> OutTensor:
    """A tensor for `write_gguf`."""
    return OutTensor(name, TYPE_OF_NAME[kind], tuple(values.shape), lambda: iter([by_name(kind).quantize(values)]))


def write(path: Path, pairs: Sequence[Pair] = (ARCHITECTURE,), tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """A correct file of float32 tensors."""
    write_gguf(path, pairs, [out_tensor(name, values) for name, values in (tensors or {}).items()], lambda *_: None)
    return path


def text(word: str | bytes) -> bytes:
    """A string as the format has it."""
    raw = word.encode() if isinstance(word, str) else word
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    """A metadata key of any kind with any bytes as its value."""
    return text(key) + struct.pack("<I", kind) + value


def entry(name: str, sizes: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """A tensor's line in the header; sizes with that of a row first."""
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def raw(
    path: Path,
    pairs: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    data: bytes = b"",
    counts: tuple[int, int] | None = None,
    **changes: Any,
) -> Path:
    """A file from parts; `counts`, `magic` and `version` may lie."""
    tensors, keys = counts or (len(entries), len(pairs))
    head = changes.get("magic", b"GGUF") + struct.pack("<IQQ", changes.get("version", 3), tensors, keys)
    head += b"".join(pairs) + b"".join(entries)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path
