"""A WeightSource over a GGUF file: canonical tensors decoded on request, or their published bytes in canonical order.

Knows how a file's tensors become canonical ones; how a type's bytes become values is `quant`'s, which names belong
together `gguf_names`'. Bytes are read through a memory map: nothing is copied before somebody asks for it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strata.errors import WeightFileError
from strata.quant.formats import by_gguf_type
from strata.weights.gguf import Gguf, GgufTensor, open_gguf
from strata.weights.gguf_config import architecture_of, heads_of, read_config
from strata.weights.gguf_names import Change, Heads, Order, Rule, find_rules, row_index, rules_of, value_index
from strata.weights.gguf_types import GgmlType
from strata.weights.safetensors import ProgressCallback

_CHUNK_WEIGHTS = 8 << 20  # decoded at a time: 32 MiB of float32
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True)
class RawMatrix:
    """The published bytes of a matrix: a view of the file, or a copy where its rows stand in another order there."""

    type: GgmlType
    columns: int
    data: np.ndarray  # [rows, row bytes] uint8
    post_scale: float = 1.0  # published beside it (NVFP4): every value times this


@dataclass(frozen=True)
class RawExperts:
    """The same of one matrix of every expert: a view of the file."""

    type: GgmlType
    columns: int
    data: np.ndarray  # [experts, rows, row bytes] uint8
    post_scales: tuple[float, ...]  # one an expert


@dataclass(frozen=True)
class _Entry:
    """A canonical tensor, the file's tensors under one another in it, and how it differs from them."""

    rule: Rule
    parts: tuple[GgufTensor, ...]
    shape: tuple[int, ...]
    rows: np.ndarray | None  # canonical row i is row rows[i] of the parts; None: the same order
    columns: np.ndarray | None

    @property
    def part_rows(self) -> int:
        """Rows of all parts together, of one expert if there are experts."""
        return sum(_matrix_shape(part)[0] for part in self.parts)


class GgufSource:
    """The tensors of one GGUF model. Made by `open_gguf_model`; not thread-safe."""

    config_origin = "the file's metadata"  # in messages

    def __init__(self, model: Gguf, config: Mapping[str, Any], entries: dict[str, _Entry], unread: list[str]) -> None:
        self.model = model
        self.directory = model.path  # what messages name; a directory for the other kind of source
        self.config = config
        self._entries = entries
        self._unread = unread
        self._on_progress: ProgressCallback | None = None
        self._bytes_done = 0
        self._bytes_total = 0

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences for the user about what was left out or costs more than it looks."""
        notices: tuple[str, ...] = ()
        if self._unread:
            count = len(self._unread)
            words = f"{count:,} tensors of the file are" if count > 1 else "1 tensor of the file is"
            notices += (f"{words} not read, for example {self._unread[0]}",)
        if decoded := self.decoded_names():
            first = self._entries[decoded[0]].parts[0]
            notices += (
                f"{len(decoded):,} matrices are held in float32, for example {first.name} ({first.type.name}): rows of "
                "several types stand between one another in the engine's order of heads",
            )
        return notices

    def names(self) -> Collection[str]:
        return self._entries.keys() | self._integers.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return (len(self._integers[name]),) if name in self._integers else self._find(name).shape

    def stored_bytes(self, name: str) -> int:
        """Bytes that the tensor takes in its files. Raises WeightFileError if it is missing."""
        return 0 if name in self._integers else sum(part.stored_bytes for part in self._find(name).parts)

    def stored_code(self, name: str) -> str:
        """The storage type as the file names it: `Q4_K`; that of the first part if several have different ones."""
        return "I64" if name in self._integers else self._find(name).parts[0].type.name

    def stored_types(self, name: str) -> dict[str, int]:
        """Bytes by storage type: the parts of a tensor may have different ones."""
        sizes: dict[str, int] = {}
        for part in () if name in self._integers else self._find(name).parts:
            sizes[part.type.name] = sizes.get(part.type.name, 0) + part.stored_bytes
        return sizes

    def report_progress(self, names: Iterable[str], on_progress: ProgressCallback | None) -> None:
        """From now on tell `on_progress` how far the reading of the tensors `names` has come; None stops it."""
        self._on_progress = on_progress
        self._bytes_done = 0
        self._bytes_total = sum(self.stored_bytes(name) for name in names)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        if name in self._integers:
            return torch.tensor(self._integers[name], dtype=torch.int64)
        entry = self._find(name)
        experts = entry.shape[0] if _has_experts(entry) else 1
        out = torch.empty((experts, entry.part_rows, entry.parts[0].shape[-1]), dtype=dtype)
        if _is_vector(entry):
            out = torch.empty((1, entry.part_rows, 1), dtype=dtype)
        for expert in range(experts):
            self._fill(entry, expert, out[expert])
        return out.reshape(entry.shape)

    def rows(self, name: str, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        entry = self._find(name)
        if len(entry.shape) != 2 or len(entry.parts) != 1 or entry.rows is not None or entry.columns is not None:
            raise WeightFileError(f"tensor {name} is not read by rows")
        ids = row_ids.cpu().numpy()
        if ids.size and not 0 <= ids.min() <= ids.max() < entry.shape[0]:
            raise WeightFileError(
                f"rows {ids.min()} to {ids.max()} of {name} were asked for; it has {entry.shape[0]:,}"
            )
        return self._decode(entry.parts[0], 0, self.model.rows_of(entry.parts[0])[ids]).to(dtype)

    def raw(self, name: str) -> tuple[RawMatrix, ...] | None:
        """The published bytes of a matrix, as matrices that lie one under another in it.

        None if a file's bytes cannot be the canonical tensor: its values change, its columns are not moved in whole
        blocks, or its rows mix parts of different types. Such a tensor is decoded.
        """
        entry = self._find(name)
        if _has_experts(entry) or _is_vector(entry) or len(entry.shape) != 2 or entry.rule.change is not Change.NONE:
            return None
        matrices = [self._raw_part(part, 0) for part in entry.parts]
        if entry.rows is not None and len(matrices) > 1:
            first = matrices[0]
            if any((each.type, each.post_scale) != (first.type, first.post_scale) for each in matrices):
                return None
            joined = np.concatenate([each.data for each in matrices])
            matrices = [RawMatrix(first.type, first.columns, joined, first.post_scale)]
        if entry.rows is not None:
            matrices = [RawMatrix(m.type, m.columns, m.data[entry.rows], m.post_scale) for m in matrices]
        if entry.columns is None:
            return tuple(matrices)
        return self._with_moved_columns(matrices)

    def raw_in_file_order(self, name: str) -> tuple[RawMatrix, np.ndarray] | None:
        """A matrix whose columns stand in another order in the file, as a view, and that order.

        Column j of the file's matrix is for the canonical input order[j]: its product with x[order] is the canonical
        matrix's with x, whatever the blocks are. None for a matrix whose columns stand where they should.
        """
        entry = self._find(name)
        return None if entry.columns is None else (self._raw_part(entry.parts[0], 0), np.argsort(entry.columns))

    def raw_expert(self, name: str, expert: int) -> tuple[RawMatrix, ...]:
        """The published bytes of one expert of a packed tensor: views of the file, gate above up."""
        entry = self._find(name)
        if not _has_experts(entry) or not 0 <= expert < entry.shape[0]:
            raise WeightFileError(f"tensor {name} of shape {list(entry.shape)} has no expert {expert}")
        return tuple(self._raw_part(part, expert) for part in entry.parts)

    def raw_experts(self, name: str) -> tuple[RawExperts, ...]:
        """The published bytes of all experts of a packed tensor: gate above up."""
        entry = self._find(name)
        if not _has_experts(entry):
            raise WeightFileError(f"tensor {name} of shape {list(entry.shape)} has no experts")
        return tuple(
            RawExperts(
                part.type,
                part.shape[-1],
                self.model.rows_of(part),
                tuple(self._post_scale(part, expert) for expert in range(part.shape[0])),
            )
            for part in entry.parts
        )

    def close(self) -> None:
        """Nothing is kept open beyond the mapping, which ends with this object."""

    @cached_property
    def _integers(self) -> dict[str, list[int]]:
        """The constants of an n-gram hash: metadata here, tensors in a published directory."""
        keys = {
            "layer_multipliers": "layer_multipliers",
            "ngram_heads_offsets": "head_offsets",
            "ngram_heads_vocab_sizes": "head_vocab_sizes",
        }
        found = {}
        for layer in self.config.get("ple_layer_ids", ()):
            for name, key in keys.items():
                canonical = f"model.layers.{layer - 1}.ple.ple_embedding.{name}"
                found[canonical] = self.model.metadata.integers(f"{self.model.architecture}.ple.{key}")
        return found

    @cached_property
    def _heads(self) -> Heads:
        return heads_of(dict(self.config))

    def decoded_names(self) -> list[str]:
        """Quantized matrices whose published bytes are of no use."""
        found = []
        for name, entry in self._entries.items():
            is_quantized = entry.parts[0].type.block_weights > 1 and len(entry.parts[0].shape) == 2
            if is_quantized and entry.rows is not None and len({part.type for part in entry.parts}) > 1:
                found.append(name)
        return found

    def _with_moved_columns(self, matrices: list[RawMatrix]) -> tuple[RawMatrix, ...] | None:
        width = self._heads.value_dim
        if any(width % each.type.block_weights for each in matrices):
            return None
        order = value_index(self._heads, 1)
        return tuple(
            RawMatrix(
                each.type,
                each.columns,
                each.data.reshape(len(each.data), len(order), -1)[:, order].reshape(each.data.shape),
                each.post_scale,
            )
            for each in matrices
        )

    def _raw_part(self, part: GgufTensor, expert: int) -> RawMatrix:
        data = self.model.rows_of(part)
        data = data[expert] if data.ndim == 3 else data
        return RawMatrix(part.type, part.shape[-1], data, self._post_scale(part, expert))

    def _fill(self, entry: _Entry, expert: int, out: torch.Tensor) -> None:
        """Decode one matrix of an entry into `out` [rows, columns], a chunk of the file's rows at a time."""
        inverse = None if entry.rows is None else torch.from_numpy(np.argsort(entry.rows))
        begin = 0
        for part in entry.parts:
            rows, columns = _matrix_shape(part)
            data = self.model.rows_of(part)
            data = data.reshape(-1, rows, data.shape[-1] // (rows if len(part.shape) == 1 else 1))[expert]
            step = max(1, _CHUNK_WEIGHTS // columns)
            for first in range(0, rows, step):
                raw = data[first : first + step]
                values = _change_back(self._decode(part, expert, raw).reshape(len(raw), columns), entry.rule.change)
                if entry.columns is not None:
                    values = values[:, torch.from_numpy(entry.columns)]
                span = slice(begin + first, begin + first + len(raw))
                out[span if inverse is None else inverse[span]] = values.to(out.dtype)
                self._advance(raw.size, entry.rule.canonical)
            begin += rows

    def _decode(self, part: GgufTensor, expert: int, raw: np.ndarray) -> torch.Tensor:
        """[n, row bytes] -> [n, columns] float32. Raises WeightFileError for what is not read or not finite."""
        try:
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused below
                values = torch.from_numpy(by_gguf_type(part.type.number).dequantize(raw)).reshape(len(raw), -1)
        except (WeightFileError, ValueError) as failure:
            raise WeightFileError(f"{part.file}: tensor {part.name} ({part.type.name}): {failure}") from None
        scale = self._post_scale(part, expert)
        values = values * scale if scale != 1.0 else values
        if values.numel():
            low, high = torch.aminmax(values)
            if not (torch.isfinite(low) and torch.isfinite(high)):
                raise WeightFileError(f"{part.file}: tensor {part.name} holds values that are not finite")
        return values

    def _post_scale(self, part: GgufTensor, expert: int) -> float:
        """The factor that a file may hold beside a tensor, for all of it or for each expert."""
        scale = self.model.tensors.get(part.name.removesuffix("weight") + "scale")
        if scale is None or not part.name.endswith(".weight"):
            return 1.0
        values = by_gguf_type(scale.type.number).dequantize(self.model.rows_of(scale).reshape(-1))
        if len(values) not in (1, part.shape[0] if len(part.shape) == 3 else 1):
            raise WeightFileError(f"{scale.file}: tensor {scale.name} has {len(values):,} scales for {part.name}")
        return float(values[expert if len(values) > 1 else 0])

    def _advance(self, count: int, name: str) -> None:
        if self._on_progress is not None:
            self._bytes_done += count
            self._on_progress(self._bytes_done, self._bytes_total, name)

    def _find(self, name: str) -> _Entry:
        if name not in self._entries:
            raise WeightFileError(f"{self.directory}: tensor {name} is missing")
        return self._entries[name]


def open_gguf_model(path: Path) -> GgufSource:
    """Open a GGUF model: header and metadata are read and checked, no value.

    Raises ModelError (ConfigError, WeightFileError) with one sentence for everything that is wrong.
    """
    model = open_gguf(path)
    architecture = architecture_of(model)
    ends = [model.metadata.integer(f"tokenizer.ggml.{key}", None) for key in _END_KEYS]
    config = read_config(model, [token_id for token_id in ends if token_id is not None])
    ngram_layers = config.get("ple_layer_ids") or [None]
    ngram_layer = None if ngram_layers[0] is None else ngram_layers[0] - 1
    rules = find_rules(rules_of(architecture, config["num_hidden_layers"], ngram_layer), model.tensors)
    heads = heads_of(config)
    entries = {name: _entry(model, rule, heads) for name, rule in rules.items()}
    used = {part for rule in rules.values() for part in rule.parts}
    unread = [name for name in model.tensors if name not in used and not name.endswith((".scale", ".input_scale"))]
    _refuse_unknown(model, unread, config["num_hidden_layers"])
    return GgufSource(model, config, entries, unread)


def _refuse_unknown(model: Gguf, unread: Iterable[str], layers: int) -> None:
    """A tensor that nobody reads changes answers unless it belongs to a draft layer behind the model's own."""
    for name in unread:
        layer = name.split(".")[1] if name.startswith("blk.") else ""
        if not (layer.isdecimal() and int(layer[:9]) >= layers):
            raise WeightFileError(
                f"{model.path}: tensor {name[:100]!r} is not known to {model.architecture} models and could "
                "change their answers"
            )


def _entry(model: Gguf, rule: Rule, heads: Heads) -> _Entry:
    parts = tuple(model.tensors[part] for part in rule.parts)
    first = parts[0]
    if len(first.shape) > 3 or (len(first.shape) == 1 and first.type.block_weights > 1):
        raise WeightFileError(
            f"{first.file}: tensor {first.name} has shape {list(first.shape)} as {first.type.name}, which no model has"
        )
    for other in parts[1:]:
        if other.shape[:-2] != first.shape[:-2] or other.shape[-1] != first.shape[-1] or len(other.shape) < 2:
            raise WeightFileError(
                f"{other.file}: tensor {other.name} has shape {list(other.shape)}, {first.name} {list(first.shape)}: "
                "they do not belong together"
            )
    shape = first.shape
    if len(parts) > 1:
        shape = (*first.shape[:-2], sum(part.shape[-2] for part in parts), first.shape[-1])
    rows = 0 if len(first.shape) > 2 else sum(_matrix_shape(part)[0] for part in parts)
    columns = None
    try:
        index = row_index(rule.order, heads, rows)
        if rule.order is Order.VALUE_COLUMNS:
            columns = value_index(heads, heads.value_dim)
            if len(columns) != first.shape[-1]:
                raise ValueError(f"{first.shape[-1]:,} columns do not fit the heads that the metadata names")
    except ValueError as failure:
        raise WeightFileError(f"{first.file}: tensor {first.name}: {failure}") from None
    if rule.extra_axis is not None and len(shape) == (1 if rule.extra_axis == 0 else 2):
        shape = (*shape[: rule.extra_axis], 1, *shape[rule.extra_axis :])
    if index is not None and np.array_equal(index, np.arange(len(index))):
        index = None
    if columns is not None and np.array_equal(columns, np.arange(len(columns))):
        columns = None
    return _Entry(rule, parts, shape, index, columns)


def _change_back(values: torch.Tensor, change: Change) -> torch.Tensor:
    """What a value is, from what a file holds of it."""
    if change is Change.PLUS_ONE:
        return values - 1.0
    return _logarithm_of(-values) if change is Change.MINUS_EXP else values


def _logarithm_of(rates: torch.Tensor) -> torch.Tensor:
    """The float32 whose exp is the rate, bit for bit where there is one: files hold exp of what was trained."""
    nearest = rates.double().log().float()
    found, candidate = nearest.clone(), nearest.clone()
    for direction in (torch.inf, -torch.inf):
        candidate = nearest.clone()
        for _ in range(4):
            found = torch.where((found.exp() != rates) & (candidate.exp() == rates), candidate, found)
            candidate = torch.nextafter(candidate, torch.full_like(candidate, direction))
    return found


def _has_experts(entry: _Entry) -> bool:
    return len(entry.parts[0].shape) == 3


def _is_vector(entry: _Entry) -> bool:
    return len(entry.parts[0].shape) == 1


def _matrix_shape(part: GgufTensor) -> tuple[int, int]:
    """Rows and columns of one matrix of a tensor; a vector counts as a column."""
    return (part.shape[0], 1) if len(part.shape) == 1 else (part.shape[-2], part.shape[-1])
