"""What a model needs, from config and tensor shapes: parameters by part, bytes of state, bytes in a placement.

Pure arithmetic; knows config fields that the families share and no file, no device and no tensor's values.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from strata.quant.cell_codes import CellKind


class Part(Enum):
    """The parts of a model that are placed and counted by themselves."""

    ROUTED = "routed experts"
    DENSE = "dense"  # mixers, routers, shared experts, residual gates and the output head: read for every token
    EMBEDDING = "embedding"  # one row a token
    NGRAM = "n-gram table"  # a few rows a token
    MTP = "MTP draft layers"


def part_of(name: str) -> Part:
    """The part that a canonical tensor belongs to."""
    if name.startswith("mtp."):
        return Part.MTP
    if ".mlp.experts." in name:
        return Part.ROUTED
    if name.endswith(".ngram_embedding.weight"):
        return Part.NGRAM
    return Part.EMBEDDING if name == "model.embed_tokens.weight" else Part.DENSE


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by part, and how many of them one token uses (drafts not counted)."""

    by_part: dict[Part, int]
    active_routed: int
    active_dense: int

    @property
    def total(self) -> int:
        return sum(self.by_part.values())

    @property
    def active(self) -> int:
        return self.active_routed + self.active_dense


def count_parameters(shapes: Mapping[str, tuple[int, ...]], experts_per_token: int) -> ParameterCount:
    """Counts over canonical tensors. Rows that are only looked up (embedding, n-gram table) are not active."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    by_part = sum_by_part(sizes)
    routed = [name for name in shapes if part_of(name) is Part.ROUTED]
    active_routed = sum(sizes[name] // shapes[name][0] * experts_per_token for name in routed)
    active_dense = by_part[Part.DENSE]
    if "lm_head.weight" not in shapes:  # tied: the head reads the whole embedding
        active_dense += by_part[Part.EMBEDDING]
    return ParameterCount(by_part, active_routed, active_dense)


@dataclass(frozen=True)
class StateBytes:
    """What one slot's conversation takes: a part that never grows and a part for each token."""

    fixed: int
    per_token: float

    def at(self, tokens: int) -> int:
        """Bytes at a context of `tokens`."""
        return self.fixed + math.ceil(self.per_token * tokens)


def state_bytes(config: Mapping[str, Any], element_bytes: int, kind: CellKind) -> StateBytes:
    """State of one slot. `config` is config.json of a supported family, `element_bytes` the compute type's size.

    Delta-net layers keep their matrix and the tail of their convolution; attention layers keep keys and values as
    `kind` says (F32: in the compute type), with an indexer also its raw keys and one pooled key a block; n-gram layers
    the tail of theirs.
    """
    text = config.get("text_config") or config
    fixed, per_token = 0, 0.0
    head_bytes = 2 * _head_dim(text) * element_bytes if kind is CellKind.F32 else kind.head_bytes(_head_dim(text))
    for is_attention in attention_layers(text):
        if is_attention:
            per_token += _kv_heads(text) * head_bytes + _index_values(text) * element_bytes
        else:
            fixed += _delta_net_values(text)
    streams = text.get("hc_count", 1) * text["hidden_size"]
    ngram_tail = (text.get("ple_conv_kernel_size", 4) - 1) * text.get("ngram_size", 3)
    fixed += len(text.get("ple_layer_ids") or ()) * ngram_tail * streams
    return StateBytes(fixed * element_bytes, per_token)


def attention_layers(text: Mapping[str, Any]) -> list[bool]:
    """For every layer True if it is an attention layer, False if it is a delta net. `text` holds the text fields."""
    layers = text["num_hidden_layers"]
    if "linear_num_key_heads" not in text:
        return [True] * layers
    types = text.get("layer_types")
    if types:
        return [name != "linear_attention" for name in types]
    interval = text.get("full_attention_interval", 4)
    return [(index + 1) % interval == 0 for index in range(layers)]


def _kv_heads(text: Mapping[str, Any]) -> int:
    return int(text.get("num_key_value_heads") or text["num_attention_heads"])


def _index_values(text: Mapping[str, Any]) -> float:
    """Of a token: an indexer's raw key, and its part of the block's pooled one."""
    if not text.get("indexer_head_dim"):
        return 0.0
    return float(text["indexer_head_dim"] * (1 + 1 / text["indexer_compress_ratio"]))


def _head_dim(text: Mapping[str, Any]) -> int:
    return int(text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"])


def _delta_net_values(text: Mapping[str, Any]) -> int:
    key_width = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value_heads, value_dim = text["linear_num_value_heads"], text["linear_value_head_dim"]
    matrix = value_heads * text["linear_key_head_dim"] * value_dim
    return matrix + (text["linear_conv_kernel_dim"] - 1) * (2 * key_width + value_heads * value_dim)


@dataclass(frozen=True)
class Placement:
    """What goes where: bytes by part in main memory and on the card, and those left in the files."""

    ram: dict[str, int]
    vram: dict[str, int]
    in_files: dict[str, int]

    @property
    def ram_bytes(self) -> int:
        return sum(self.ram.values())

    @property
    def vram_bytes(self) -> int:
        return sum(self.vram.values())


# The program with torch loaded (220 MiB measured with torch 2.13 for CPUs) and what a read of a small model works with.
PROGRAM_BYTES = 512 << 20
BARE_PROGRAM_BYTES = 256 << 20
TILE_ROWS = 512  # rows of a read that pass a layer together
# A card's context, kernels and windows; what a card shows as used before any weight is there.
CARD_BYTES = 1 << 30


def reading_bytes(config: Mapping[str, Any], chunk_rows: int) -> int:
    """Working memory of a read: the rows of a chunk, and everything between the projections of one tile's rows.

    `config` is config.json of a supported family.
    """
    text = config.get("text_config") or config
    hidden = text["hidden_size"]
    streams = text.get("hc_count", 1) * hidden
    ranks = text.get("num_experts_per_tok", 0)
    width = max(
        ranks * text.get("moe_intermediate_size", 0), 2 * (text.get("intermediate_size") or 0), 2 * _mixer_width(text)
    )
    tile = 5 * streams + (ranks + 4) * hidden + 2 * width + text["num_attention_heads"] * _head_dim(text)
    return 4 * (chunk_rows * streams + TILE_ROWS * tile)


def _mixer_width(text: Mapping[str, Any]) -> int:
    """Values of a row between a mixer's projections, of the widest mixer."""
    attention = 2 * (text["num_attention_heads"] + _kv_heads(text)) * _head_dim(text) + int(_index_values(text))
    if "linear_num_key_heads" not in text:
        return attention
    keys = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"]
    return max(attention, keys + 2 * text["linear_num_value_heads"] * text["linear_value_head_dim"])


def place_in_ram(
    tensor_bytes: Mapping[str, int], state: int, most_table_bytes: int, working_bytes: int = 0
) -> Placement:
    """Everything in main memory, as on the CPU; larger n-gram tables stay in the files and give single rows.

    tensor_bytes: canonical name -> bytes as it is held. state: bytes of the slots' state. working_bytes: what a read
    takes for itself.
    """
    sizes = sum_by_part(tensor_bytes)
    in_files = {Part.NGRAM.value: sizes.pop(Part.NGRAM)} if sizes[Part.NGRAM] > most_table_bytes else {}
    ram = {part.value: size for part, size in sizes.items() if size}
    program = max(PROGRAM_BYTES, BARE_PROGRAM_BYTES + working_bytes)
    return Placement({**ram, "state": state, "program": program}, {}, in_files)


def place_on_card(tensor_bytes: Mapping[str, int], state: int) -> Placement:
    """Experts, tables and embedding in main memory as they are stored, everything dense and the state on one card.

    The draft layers' experts stay with the other experts. Arguments as for `place_in_ram`, with sizes as stored.
    """
    is_expert = {name: ".mlp.experts." in name for name in tensor_bytes}
    in_ram = {Part.ROUTED.value: sum(size for name, size in tensor_bytes.items() if is_expert[name])}
    rest = sum_by_part({name: size for name, size in tensor_bytes.items() if not is_expert[name]})
    for part in (Part.EMBEDDING, Part.NGRAM):
        in_ram[part.value] = rest[part]
    vram = {part.value: rest[part] for part in (Part.DENSE, Part.MTP)}
    ram = {name: size for name, size in in_ram.items() if size}
    on_card = {name: size for name, size in vram.items() if size}
    return Placement({**ram, "program": PROGRAM_BYTES}, {**on_card, "state": state, "program": CARD_BYTES}, {})


def sum_by_part(tensor_bytes: Mapping[str, int]) -> dict[Part, int]:
    """Bytes (or anything else that adds up) of canonical tensors by part; every part is there."""
    sums = dict.fromkeys(Part, 0)
    for name, size in tensor_bytes.items():
        sums[part_of(name)] += size
    return sums
