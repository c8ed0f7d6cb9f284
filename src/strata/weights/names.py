"""Published tensor name -> canonical name and the part of that tensor which it holds. Pure text.

Knows the hub's conventions (prefixes, experts one by one, n-gram shards, block scales); knows no file and no shape.
"""

import re
from dataclasses import dataclass
from enum import Enum

SCALE_SUFFIX = (
    "_scale_inv"  # `X.weight_scale_inv` belongs to `X.weight`, `X.gate_up_proj_scale_inv` to `X.gate_up_proj`
)

_VISION = re.compile(r"^(model\.|language_model\.)*visual\.")
_MTP = re.compile(r"^(model\.|language_model\.)*mtp\.")
_LANGUAGE_MODEL = re.compile(r"^(model\.language_model\.|language_model\.model\.)")
_OUTER_HEAD = re.compile(r"^(model\.)?language_model\.lm_head\.")
_EXPERT = re.compile(r"^(?P<block>.+\.mlp\.experts)\.(?P<index>[0-9]+)\.(?P<matrix>gate|up|down)_proj\.weight$")
_SHARD = re.compile(r"^(?P<table>.+\.ngram_embedding)\.shard_(?P<index>[0-9]+)\.weight$")
# Matrices that block-FP8 releases of these families store as FP8; everything else stays in bf16.
_FP8_MATRIX = re.compile(
    r"\.(self_attn\.[qkvo]_proj|linear_attn\.(in_proj_qkv|in_proj_z|in_proj_qkvz|out_proj)"
    r"|(mlp|shared_expert)\.(gate|up|down)_proj)\.weight$|\.experts\.(gate_up|down)_proj$"
)
# What an n-gram embedding's hash is made of. It follows from config.json, so a release that holds it repeats itself.
_HASH_CONSTANT = re.compile(r"\.ple_embedding\.(layer_multipliers|ngram_heads_offsets|ngram_heads_vocab_sizes)$")


class Part(Enum):
    """What a published tensor holds of its canonical tensor."""

    WHOLE = "whole"
    GATE = "gate"  # the first half of the rows of one expert in gate_up_proj
    UP = "up"  # the second half
    DOWN = "down"  # one expert of down_proj
    ROWS = "rows"  # consecutive rows of an n-gram table


@dataclass(frozen=True)
class PublishedName:
    """Where a published tensor belongs. `index` counts experts or shards and is 0 for a whole tensor."""

    canonical: str
    part: Part
    index: int = 0


def is_vision_name(published: str) -> bool:
    """True for the tensors of the vision tower, which a text engine does not read."""
    return _VISION.match(published) is not None


def weight_of_scale(published: str) -> str | None:
    """The published name of the weight whose block scales these are, or None for any other tensor."""
    return published.removesuffix(SCALE_SUFFIX) if published.endswith(SCALE_SUFFIX) else None


def is_fp8_matrix(canonical: str) -> bool:
    """True if a block-FP8 release stores this tensor as FP8."""
    return _FP8_MATRIX.search(canonical) is not None


def is_hash_constant(canonical: str) -> bool:
    """True for the integers that releases hold beside an n-gram table and that follow from config.json."""
    return _HASH_CONSTANT.search(canonical) is not None


def read_published_name(published: str) -> PublishedName:
    """The canonical tensor and the part of it that a published weight (no scale, no vision tensor) holds."""
    name = _without_wrapping(published)
    if expert := _EXPERT.match(name):
        matrix = expert["matrix"]
        packed = "down_proj" if matrix == "down" else "gate_up_proj"
        return PublishedName(f"{expert['block']}.{packed}", Part(matrix), _number(expert["index"]))
    if shard := _SHARD.match(name):
        return PublishedName(f"{shard['table']}.weight", Part.ROWS, _number(shard["index"]))
    return PublishedName(name, Part.WHOLE)


def _number(digits: str) -> int:
    return int(digits[:18])  # more digits than any expert or shard; int() refuses thousands of them


def _without_wrapping(published: str) -> str:
    name = _MTP.sub("mtp.", published)
    name = _OUTER_HEAD.sub("lm_head.", name)
    return _LANGUAGE_MODEL.sub("model.", name)
