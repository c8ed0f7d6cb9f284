"""`qwen3_next`: gated delta nets and gated attention; the delta net's projections are published interleaved.

Knows this family's config fields and tensor names; the maths are the shared blocks'.
"""

from collections.abc import Mapping
from typing import Any

import torch

from strata.models import decoder_weights
from strata.models.blocks.gated_delta_net import DeltaNetShape
from strata.models.blocks.linear import Weight
from strata.models.config_fields import MOST_LAYERS, read_layer_types
from strata.models.decoder import Decoder
from strata.models.decoder_config import (
    DecoderConfig,
    read_decoder_config,
    read_delta_net,
    read_mlp,
    require_model_type,
)
from strata.models.decoder_weights import Shapes, TensorReader
from strata.models.weights import TakenRows, Weights

MODEL_TYPES = ("qwen3_next",)


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """config.json as a checked config. Raises ConfigError that names the field."""
    fields = require_model_type(values, *MODEL_TYPES)
    num_layers = fields.integer("num_hidden_layers", maximum=MOST_LAYERS)
    fields.only("use_sliding_window", (False,), False)
    fields.ignore("sliding_window")
    return read_decoder_config(
        fields,
        "qwen3_next",
        norm_offset=1.0,
        has_output_gate=True,
        default_rotary_factor=0.25,
        layer_is_full_attention=read_layer_types(fields, num_layers, ("full_attention",)),
        delta_net=read_delta_net(fields),
        mlp=read_mlp(fields, num_layers, fields.flag("norm_topk_prob", True), has_shared_expert=True),
    )


class InterleavedProjections:
    """`in_proj_qkvz` and `in_proj_ba`: for each key head its q, k, its value heads' v and z; then their b and a."""

    def shapes(self, shape: DeltaNetShape, hidden_size: int) -> Shapes:
        """Tensor name after `linear_attn.` -> shape."""
        return {
            "in_proj_qkvz.weight": (shape.conv_width + shape.value_width, hidden_size),
            "in_proj_ba.weight": (2 * shape.value_heads, hidden_size),
        }

    def read(self, reader: TensorReader, prefix: str, shape: DeltaNetShape) -> Weight:
        """The rows of both tensors in the order q, k, v, z, b, a: what `DeltaNetWeights.in_all` holds."""
        per_key = shape.value_heads // shape.key_heads
        value_rows = per_key * shape.value_dim
        mixed = _apart(shape.key_heads, (shape.key_dim, shape.key_dim, value_rows, value_rows))
        gates = _apart(shape.key_heads, (per_key, per_key))
        names = f"{prefix}in_proj_qkvz.weight", f"{prefix}in_proj_ba.weight"
        return reader.matrix(TakenRows(names[0], mixed), TakenRows(names[1], gates))


def _apart(groups: int, widths: tuple[int, ...]) -> torch.Tensor:
    """Row numbers that bring parts of these widths, interleaved by group, one whole part after another."""
    rows = torch.arange(groups * sum(widths)).view(groups, -1)
    return torch.cat([part.flatten() for part in rows.split(widths, dim=1)])


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that `build` reads: canonical name -> shape."""
    return decoder_weights.expected_tensors(config, InterleavedProjections())


def build(config: DecoderConfig, weights: Weights) -> Decoder:
    """The model with all its weights read."""
    return Decoder(config, decoder_weights.read_weights(config, weights, InterleavedProjections()), weights.dtype)
