"""Random weights that depend on nothing but names, shapes and a seed, in the layout that the hub publishes.

Knows how each kind of tensor is scaled so that activations and logits are of order 1; the shapes come from the
caller, who knows the model family. The same model comes out however it is cut into experts, shards or files.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from strata.weights.fp8 import encode_blocks, scale_shape
from strata.weights.names import SCALE_SUFFIX, is_fp8_matrix
from strata.weights.writer import PlannedTensor

_CHUNK_VALUES = 4 << 20  # made at a time
_HASH_CHUNK = 1 << 16  # counters hashed at a time: 512 KiB of working memory stays in the cache
_NORM = re.compile(r"(^|\.)[a-z_]*norm[a-z_]*\.weight$")


@dataclass(frozen=True)
class PublishedStyle:
    """How a family's release lays its tensors out."""

    prefix: str = "model."  # what canonical `model.` becomes: `model.` or `model.language_model.`
    norms_are_offsets: bool = True  # norms multiply by 1 + weight
    experts_are_packed: bool = True  # else each expert's matrices are tensors of their own
    ngram_shards: int = 1
    fp8_block: tuple[int, int] | None = None  # None: everything in bf16
    integers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # canonical name -> int64 values, as they are
    seed: int = 0


def hash_values(key: int, start: int, count: int) -> np.ndarray:
    """Values start .. start + count - 1 of the random sequence `key`: uniform in (-1, 1), [count] float32.

    Sixteen bits of a splitmix64 of the counter make one value, so any stretch can be made on its own.
    """
    first, last = start // 4, -(-(start + count) // 4)
    words = np.empty(last - first, dtype=np.uint64)
    for begin in range(first, last, _HASH_CHUNK):
        end = min(last, begin + _HASH_CHUNK)
        words[begin - first : end - first] = _splitmix(np.arange(begin, end, dtype=np.uint64), key)
    halves = words.view(np.uint16)[start - 4 * first :][:count].astype(np.float32)
    halves -= np.float32(32767.5)
    halves *= np.float32(1 / 32768)
    return halves


def key_of(name: str, seed: int) -> int:
    """The 64-bit key of a tensor's random sequence."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little")


def _splitmix(counter: np.ndarray, key: int) -> np.ndarray:
    """The finaliser of splitmix64 over key + counter * the golden ratio, in place."""
    counter *= np.uint64(0x9E3779B97F4A7C15)
    counter += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        counter ^= counter >> np.uint64(shift)
        counter *= np.uint64(factor)
    counter ^= counter >> np.uint64(31)
    return counter


@dataclass(frozen=True)
class ValueRule:
    """value = centre + spread * uniform(-1, 1), then its logarithm if `takes_log`."""

    centre: float
    spread: float
    takes_log: bool = False

    def apply(self, uniform: np.ndarray) -> torch.Tensor:
        """[n] float32 in (-1, 1) -> [n] float32."""
        values = torch.from_numpy(uniform).mul_(self.spread).add_(self.centre)
        return values.log_() if self.takes_log else values


def rule_of(name: str, shape: tuple[int, ...], style: PublishedStyle, ties_embeddings: bool) -> ValueRule:
    """How a canonical tensor is filled, so that what it multiplies keeps its order of magnitude."""
    unit = math.sqrt(3.0)  # uniform(-unit, unit) has variance 1
    if name.endswith(".A_log"):
        return ValueRule(8.0, 7.9, takes_log=True)  # decay rates from 0.1 to 16
    if name.endswith(".dt_bias"):
        return ValueRule(-4.6, 2.3)  # softplus of it: step sizes from 0.001 to 0.1, so that states remember
    if _NORM.search(name):
        is_offset = style.norms_are_offsets and not name.endswith(".linear_attn.norm.weight")
        return ValueRule(0.0 if is_offset else 1.0, 0.1)
    if name.endswith("ngram_embedding.weight") or (name.endswith("embed_tokens.weight") and not ties_embeddings):
        return ValueRule(0.0, unit)
    return ValueRule(0.0, unit / math.sqrt(shape[-1]))


def plan_tensors(shapes: Mapping[str, tuple[int, ...]], style: PublishedStyle) -> list[PlannedTensor]:
    """Every tensor to publish for the canonical `shapes`, in order: experts and n-gram shards cut, FP8 scales added."""
    ties_embeddings = "lm_head.weight" not in shapes
    planned: list[PlannedTensor] = []
    for name, shape in shapes.items():
        published = re.sub(r"^model\.", style.prefix, name)
        rule = rule_of(name, shape, style, ties_embeddings)
        for cut_name, cut_shape, start in _cuts(published, shape, style):
            run = _Run(key_of(name, style.seed), start, cut_shape, rule)
            if style.fp8_block is not None and is_fp8_matrix(name):
                planned += _planned_fp8(cut_name, run, style.fp8_block)
            else:
                planned.append(PlannedTensor(cut_name, torch.bfloat16, cut_shape, run.bf16_chunks))
    for name, values in style.integers.items():
        planned.append(_planned_integers(re.sub(r"^model\.", style.prefix, name), values))
    return planned


def _cuts(name: str, shape: tuple[int, ...], style: PublishedStyle) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """(published name, shape, first value) of the tensors that a canonical one is published as."""
    block, _, last = name.rpartition(".")
    if not style.experts_are_packed and name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
        matrices = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
        experts, rows, columns = shape
        its_rows = rows // len(matrices)
        for expert in range(experts):
            for place, matrix in enumerate(matrices):
                start = (expert * rows + place * its_rows) * columns
                yield f"{block}.{expert}.{matrix}.weight", (its_rows, columns), start
    elif name.endswith(".ngram_embedding.weight") and style.ngram_shards > 1:
        rows, columns = shape
        edges = [rows * shard // style.ngram_shards for shard in range(style.ngram_shards + 1)]
        for shard, (begin, end) in enumerate(pairwise(edges)):
            yield f"{block}.shard_{shard}.weight", (end - begin, columns), begin * columns
    else:
        yield name, shape, 0


@dataclass(frozen=True)
class _Run:
    """Consecutive values of one canonical tensor that are published as a tensor of `shape`."""

    key: int
    start: int
    shape: tuple[int, ...]
    rule: ValueRule

    def values(self, begin: int, count: int) -> torch.Tensor:
        """[count] float32 from the run's value `begin` on."""
        return self.rule.apply(hash_values(self.key, self.start + begin, count))

    def bf16_chunks(self) -> Iterator[torch.Tensor]:
        total = math.prod(self.shape)
        for begin in range(0, total, _CHUNK_VALUES):
            yield self.values(begin, min(_CHUNK_VALUES, total - begin)).bfloat16()


def _planned_fp8(name: str, run: _Run, block: tuple[int, int]) -> list[PlannedTensor]:
    """A weight and its scales. The scales are found while the weight is written, which comes first."""
    rows, columns = run.shape[-2:]
    step = max(1, _CHUNK_VALUES // max(1, columns * block[0])) * block[0]  # whole blocks
    scales: list[torch.Tensor] = []

    def weight_chunks() -> Iterator[torch.Tensor]:
        scales.clear()
        for matrix in range(math.prod(run.shape[:-2])):
            for begin in range(0, rows, step):
                count = min(step, rows - begin)
                values = run.values((matrix * rows + begin) * columns, count * columns)
                coded, scale = encode_blocks(values.view(count, columns), block)
                scales.append(scale)
                yield coded

    def scale_chunks() -> Iterator[torch.Tensor]:
        yield from scales

    return [
        PlannedTensor(name, torch.float8_e4m3fn, run.shape, weight_chunks),
        PlannedTensor(name + SCALE_SUFFIX, torch.float32, scale_shape(run.shape, block), scale_chunks),
    ]


def _planned_integers(name: str, values: tuple[int, ...]) -> PlannedTensor:
    return PlannedTensor(name, torch.int64, (len(values),), lambda: iter((torch.tensor(values),)))
