"""`strata synth FAMILY OUT.gguf`: a GGUF file of random blocks, made at the speed of the disk.

Knows which tensors are made as blocks and which as values; keys and the plan are those of `strata convert`.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from strata.cli.gguf_keys import architecture_for, heads_of, model_pairs
from strata.cli.gguf_plan import plan_tensors
from strata.models.qwen4_exp_config import Qwen4ExpConfig
from strata.text.gguf_vocabulary import tokenizer_pairs, without_tokenizer
from strata.types import ProgressCallback
from strata.weights.gguf_writer import OutTensor, write_gguf
from strata.weights.presets import text_part
from strata.weights.synthetic import PublishedStyle, hash_values, key_of, rule_of
from strata.weights.synthetic_blocks import random_blocks

_PIECE_VALUES = 4 << 20
_IN_BLOCKS = ("Q4_0", "Q8_0")


class RandomValues:
    """Tensors of some shapes with random values that depend on names and the seed. See `PublishedValues`."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], style: PublishedStyle) -> None:
        self._shapes, self._style = shapes, style

    def names(self) -> Collection[str]:
        return self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def stored_code(self, name: str) -> str:
        return "F32"

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.cat(list(self.pieces(name, dtype))).view(self._shapes[name])

    def pieces(self, name: str, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        shape = self._shapes[name]
        rule = rule_of(name, shape, self._style, "lm_head.weight" not in self._shapes)
        key, columns = key_of(name, self._style.seed), shape[-1]
        step = max(1, _PIECE_VALUES // columns) * columns
        for begin in range(0, math.prod(shape), step):
            count = min(step, math.prod(shape) - begin)
            yield rule.apply(hash_values(key, begin, count)).to(dtype).view(-1, columns)


def write_random_gguf(
    out: Path,
    config: Any,
    fields: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    style: PublishedStyle,
    types: tuple[str, str],
    tokenizer: Path | None,
    on_progress: ProgressCallback | None,
) -> int:
    """Write the file; returns its size. `config` is parsed, `fields` are those of config.json.

    types: of the experts, and of the other large matrices. tokenizer: a directory whose tokenizer the file gets.
    """
    shapes = {name: shape for name, shape in shapes.items() if not name.startswith("mtp.")}
    expert_type, dense_type = types
    values, architecture = RandomValues(shapes, style), architecture_for(config)
    ngram_layer = next(iter(config.ngrams), None) if isinstance(config, Qwen4ExpConfig) else None
    place = (values, architecture, heads_of(config), config.num_layers, ngram_layer)
    of_experts = {tensor.name: tensor for tensor in plan_tensors(*place, expert_type)}
    tensors = [
        _made_as_blocks(of_experts[tensor.name] if "_exps" in tensor.name else tensor, style.seed)
        for tensor in plan_tensors(*place, dense_type)
    ]
    rope = text_part(dict(fields)).get("rope_parameters") or {}
    pairs = model_pairs(config, out.stem, expert_type, rope.get("mrope_section"))
    pairs += tokenizer_pairs(tokenizer, config.vocabulary_size) if tokenizer is not None else without_tokenizer()
    total, done = sum(tensor.stored_bytes for tensor in tensors), 0

    def advance(count: int, _: str) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress("writing", done, total)

    return write_gguf(out, pairs, tensors, advance)


def _made_as_blocks(tensor: OutTensor, seed: int) -> OutTensor:
    if tensor.type.name not in _IN_BLOCKS:
        return tensor
    return replace(tensor, data=partial(random_blocks, tensor.name, tensor.type, tensor.shape, seed))
