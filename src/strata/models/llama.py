"""`llama`: dense, full attention on every layer without head norms, norms that multiply by weight.

Knows this family's config fields and tensor names; the maths are the shared blocks'.
"""

from collections.abc import Mapping
from typing import Any

from strata.models import decoder_weights
from strata.models.config_fields import MOST_LAYERS
from strata.models.decoder import Decoder
from strata.models.decoder_config import DecoderConfig, read_decoder_config, read_dense_mlp, require_model_type
from strata.models.decoder_weights import SeparateProjections
from strata.models.weights import Weights

MODEL_TYPES = ("llama",)


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """config.json as a checked config. Raises ConfigError that names the field."""
    fields = require_model_type(values, *MODEL_TYPES)
    num_layers = fields.integer("num_hidden_layers", maximum=MOST_LAYERS)
    fields.only("partial_rotary_factor", (1.0,), 1.0)
    fields.only("rope_interleaved", (False,), False)
    fields.ignore("pretraining_tp", "is_llama_config", "transformers.js_config")  # training and other programs
    return read_decoder_config(
        fields,
        "llama",
        norm_offset=0.0,
        has_output_gate=False,
        default_rotary_factor=1.0,
        layer_is_full_attention=(True,) * num_layers,
        delta_net=None,
        mlp=read_dense_mlp(fields, num_layers),
        has_head_norms=False,
    )


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that `build` reads: canonical name -> shape."""
    return decoder_weights.expected_tensors(config, SeparateProjections())


def build(config: DecoderConfig, weights: Weights) -> Decoder:
    """The model with all its weights read."""
    return Decoder(config, decoder_weights.read_weights(config, weights, SeparateProjections()), weights.dtype)
