"""`qwen3_5_moe` (its text part): gated delta nets and gated attention, the delta net's projections published apart.

Knows this family's config fields and tensor names; the maths are the shared blocks'. Vision is ignored.
"""

from collections.abc import Mapping
from typing import Any

from strata.models import decoder_weights
from strata.models.config_fields import MOST_LAYERS, read_layer_types, text_fields
from strata.models.decoder import Decoder
from strata.models.decoder_config import DecoderConfig, read_decoder_config, read_delta_net, read_mlp
from strata.models.decoder_weights import SeparateProjections
from strata.models.weights import Weights

MODEL_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """config.json, with `text_config` inside or text-only, as a checked config. Raises ConfigError naming the field."""
    fields = text_fields(values, "qwen3_5_moe")
    fields.only("model_type", MODEL_TYPES, "qwen3_5_moe_text")
    num_layers = fields.integer("num_hidden_layers", maximum=MOST_LAYERS)
    fields.only("attn_output_gate", (True,), True)
    fields.only("norm_topk_prob", (True,), True)
    fields.only("mlp_only_layers", ([],), [])
    fields.only("decoder_sparse_step", (1,), 1)
    return read_decoder_config(
        fields,
        "qwen3_5_moe",
        norm_offset=1.0,
        has_output_gate=True,
        default_rotary_factor=0.25,
        layer_is_full_attention=read_layer_types(fields, num_layers, ("full_attention",)),
        delta_net=read_delta_net(fields),
        mlp=read_mlp(fields, num_layers, normalize_weights=True, has_shared_expert=True),
    )


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that `build` reads: canonical name -> shape."""
    return decoder_weights.expected_tensors(config, SeparateProjections())


def build(config: DecoderConfig, weights: Weights) -> Decoder:
    """The model with all its weights read."""
    return Decoder(config, decoder_weights.read_weights(config, weights, SeparateProjections()), weights.dtype)
