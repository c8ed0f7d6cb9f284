"""The plain pre-norm decoders described to the C++ library."""

import ctypes

from strata.models.blocks.gated_delta_net import DeltaNetWeights
from strata.models.blocks.linear import GatedMlpWeights
from strata.models.decoder import Decoder, DecoderLayer
from strata.models.fast.parts import Kept, describe_attention, describe_delta_net, describe_dense_mlp, describe_experts
from strata.native import mixers


def describe_model(model: Decoder, kept: Kept) -> mixers.ModelShape:
    """The whole model."""
    config, weights = model.config, model.weights
    array = kept.keep((mixers.Layer * len(model.layers))(*(_layer(kept, model, layer) for layer in model.layers)))
    return mixers.ModelShape(
        hidden=config.hidden_size,
        streams=1,
        layer_count=len(model.layers),
        vocabulary=config.vocabulary_size,
        rotary_half=config.rotary.rotary_dim // 2,
        eps=config.eps,
        layers=ctypes.addressof(array),
        embedding=kept.table(weights.embedding),
        frequencies=kept.pointer(model.frequencies),
        final_norm=kept.pointer(weights.final_norm_scale),
        head=kept.matrices(weights.head),
    )


def _layer(kept: Kept, model: Decoder, layer: DecoderLayer) -> mixers.Layer:
    config, weights = model.config, layer.weights
    native = mixers.Layer(
        mixer_norm=kept.pointer(weights.mixer_norm_scale), mlp_norm=kept.pointer(weights.mlp_norm_scale)
    )
    if isinstance(weights.mixer, DeltaNetWeights):
        native.delta = describe_delta_net(kept, weights.mixer, config.require_delta_net())
    else:
        native.is_attention = 1
        native.attention = describe_attention(kept, weights.mixer, config.attention)
    if isinstance(weights.mlp, GatedMlpWeights):
        native.mlp = describe_dense_mlp(kept, weights.mlp)
    else:
        native.mlp = describe_experts(kept, weights.mlp, config.mlp.require_moe())
    return native
