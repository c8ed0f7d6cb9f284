"""Which tensors a GGUF file gets, each in which type, and where their values come from.

Knows rules of storage (what stays float, what takes another type because its rows are too short) and how canonical
values become a file's; knows no metadata key.
"""

from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch

from strata.errors import SettingsError
from strata.hardware import read_cpu
from strata.quant.formats import ALL, by_name
from strata.weights.gguf_names import (
    NGRAM_TABLE,
    Architecture,
    Change,
    Heads,
    Order,
    Rule,
    row_index,
    rules_of,
    value_index,
)
from strata.weights.gguf_types import TYPE_OF_NAME, GgmlType
from strata.weights.gguf_writer import OutTensor

_CHUNK_WEIGHTS = 1 << 19  # quantized at a time by each thread
# What takes a type's place where rows are no multiple of its block; the last one takes any row.
_SHORT_ROWS = {
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q2_0": "Q4_0", "NVFP4": "MXFP4",
    "MXFP4": "Q8_0",
}  # fmt: skip
_FALLBACK = "BF16"
_EXPERTS_ONLY = ("MXFP4", "NVFP4")  # everything else is Q8_0 beside them, as published files have it
_FEW_BITS = 5.6  # below it the head gets a larger type: a wrong token costs more than a wrong weight


class PublishedValues(Protocol):
    """Where values come from: `SafetensorsSource` is one."""

    def names(self) -> Collection[str]:
        """Canonical names."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor."""
        ...

    def stored_code(self, name: str) -> str:
        """As safetensors files write it: BF16, F32, .."""
        ...

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Its values."""
        ...

    def pieces(self, name: str, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """Its rows, some at a time."""
        ...


def writable_types() -> tuple[str, ...]:
    """Every value of --type."""
    return tuple(found.name for found in ALL if found.quantize_blocks is not None and found.name in TYPE_OF_NAME)


def check_type(name: str) -> str:
    """The type's name as GGUF spells it. Raises SettingsError that lists what works."""
    wanted = name.upper()
    if wanted not in writable_types():
        raise SettingsError(f"--type {name} does not work; one of these does: {', '.join(writable_types())}")
    return wanted


def plan_tensors(
    source: PublishedValues,
    architecture: Architecture,
    heads: Heads,
    layers: int,
    ngram_layer: int | None,
    type_: str,
) -> list[OutTensor]:
    """Every tensor of the file, in its order. Nothing is read before a tensor's turn comes."""
    reader = _Reader(source)
    planned: list[OutTensor] = []
    done: set[str] = set()
    is_tied = "lm_head.weight" not in source.names()
    for rule in rules_of(architecture, layers, ngram_layer):
        if rule.canonical not in source.names() or rule.canonical in done:
            continue
        done.add(rule.canonical)
        planned += _of_rule(reader, rule, heads, type_, is_tied)
    return planned


def _of_rule(reader: "_Reader", rule: Rule, heads: Heads, type_: str, is_tied: bool) -> Iterator[OutTensor]:
    """The file's tensors that together are one canonical tensor."""
    shape = reader.source.shape(rule.canonical)
    if rule.extra_axis is not None:
        shape = tuple(size for axis, size in enumerate(shape) if axis != rule.extra_axis)
    begin = 0
    for part, rows in zip(rule.parts, _part_rows(rule, shape, heads, reader.source), strict=True):
        part_shape = shape if len(shape) == 1 else (*shape[:-2], rows, shape[-1])
        kind = _storage(part, part_shape, type_, is_head=part == ("token_embd.weight" if is_tied else "output.weight"))
        yield OutTensor(part, kind, part_shape, _Values(reader, rule, heads, kind, slice(begin, begin + rows)))
        begin += rows


def _part_rows(rule: Rule, shape: tuple[int, ...], heads: Heads, source: PublishedValues) -> list[int]:
    rows = shape[0] if len(shape) == 1 else shape[-2]
    if len(rule.parts) == 1:
        return [rows]
    if rule.order is Order.BY_KIND:
        value_rows = heads.value_heads * heads.value_dim
        return [rows - value_rows, value_rows]
    if "indexer" in rule.canonical:  # several query heads and one key head
        key_rows = source.shape(rule.canonical.replace("index_qk_proj", "k_layernorm"))[0]
        return [rows - key_rows, key_rows]
    return [rows // len(rule.parts)] * len(rule.parts)


def _storage(name: str, shape: tuple[int, ...], wanted: str, *, is_head: bool) -> GgmlType:
    """The type of one tensor: what llama.cpp asks for, then what was asked for, then what fits its rows."""
    if len(shape) == 1 or "norm" in name or "ffn_gate_inp" in name or "conv1d" in name:
        return TYPE_OF_NAME["F32"]
    bits = TYPE_OF_NAME[wanted]
    is_float = bits.block_weights == 1
    if ".indexer." in name and not is_float:
        return TYPE_OF_NAME[_FALLBACK]
    if wanted in _EXPERTS_ONLY and "_exps" not in name:
        wanted = "Q8_0"
    if is_head and not is_float and bits.block_bytes * 8 / bits.block_weights < _FEW_BITS:
        wanted = "Q6_K"
    if name == NGRAM_TABLE and wanted == "Q2_0":
        wanted = "Q4_0"
    while shape[-1] % TYPE_OF_NAME[wanted].block_weights or wanted not in writable_types():
        wanted = _SHORT_ROWS.get(wanted, "IQ4_NL" if wanted.startswith("IQ") and wanted != "IQ4_NL" else _FALLBACK)
    return TYPE_OF_NAME[wanted]


class _Reader:
    """Canonical tensors one at a time: the one just read is kept, since its parts are written one after another."""

    def __init__(self, source: PublishedValues) -> None:
        self.source = source
        self.worker_count = read_cpu().usable_cores
        self.workers = ThreadPoolExecutor(self.worker_count)
        self._name = ""
        self._values = torch.empty(0)

    def read(self, name: str) -> torch.Tensor:
        if name != self._name:
            self._name, self._values = "", torch.empty(0)  # the old one goes before the new one comes
            self._values = self.source.tensor(name, self._dtype(name))
            self._name = name
        return self._values

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """A table as its files hold it: too large to be in memory at once."""
        yield from self.source.pieces(name, self._dtype(name))

    def _dtype(self, name: str) -> torch.dtype:
        return {"BF16": torch.bfloat16, "F16": torch.float16}.get(self.source.stored_code(name), torch.float32)


class _Values:
    """The bytes of one of the file's tensors, made when they are asked for."""

    def __init__(self, reader: _Reader, rule: Rule, heads: Heads, kind: GgmlType, rows: slice) -> None:
        self._reader, self._rule, self._heads = reader, rule, heads
        self._kind, self._rows = kind, rows

    def __call__(self) -> Iterator[np.ndarray]:
        """The bytes in order; several chunks are quantized at the same time."""
        waiting: deque[Future[np.ndarray]] = deque()
        for chunk in self._chunks():
            waiting.append(self._reader.workers.submit(self._encode, chunk))
            if len(waiting) > self._reader.worker_count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _chunks(self) -> Iterator[torch.Tensor]:
        """The values in the file's order, some rows at a time."""
        for values in self._matrices():
            step = max(1, _CHUNK_WEIGHTS // (values.shape[-1] if values.dim() > 1 else 1))
            for begin in range(0, values.shape[0], step):
                yield values[begin : begin + step]

    def _matrices(self) -> Iterator[torch.Tensor]:
        if self._rule.parts == (NGRAM_TABLE,):
            yield from self._reader.pieces(self._rule.canonical)
            return
        values = self._reader.read(self._rule.canonical)
        if self._rule.extra_axis is not None:
            values = values.squeeze(self._rule.extra_axis)
        if values.dim() == 3:
            yield from (expert[self._rows] for expert in values)
            return
        index = row_index(self._rule.order, self._heads, values.shape[0])
        if index is not None:
            values = values[torch.from_numpy(np.argsort(index))]
        if self._rule.order is Order.VALUE_COLUMNS:
            values = values[:, torch.from_numpy(np.argsort(value_index(self._heads, self._heads.value_dim)))]
        yield values[self._rows]

    def _encode(self, chunk: torch.Tensor) -> np.ndarray:
        values = chunk.float()
        if self._rule.change is Change.PLUS_ONE:
            values = values + 1.0
        elif self._rule.change is Change.MINUS_EXP:
            values = -values.exp()
        return by_name(self._kind.name).quantize(values.contiguous())
