"""The plain pre-norm decoders described to the C++ library. Knows their tensor names."""

import ctypes

from strata.models.blocks.gated_delta_net import DeltaNetWeights
from strata.models.blocks.linear import GatedMlpWeights
from strata.models.decoder import Decoder, DecoderLayer
from strata.models.fast.matrices import MatrixReader
from strata.models.fast.parts import describe_attention, describe_delta_net, describe_dense_mlp, describe_experts
from strata.native import mixers

_SEPARATE = tuple(f"in_proj_{part}.weight" for part in ("qkv", "z", "b", "a"))


def describe_model(model: Decoder, reader: MatrixReader) -> mixers.ModelShape:
    """The whole model."""
    config = model.config
    layers = [_layer(reader, model, layer, f"model.layers.{layer.index}.") for layer in model.layers]
    array = reader.keep((mixers.Layer * len(layers))(*layers))
    return mixers.ModelShape(
        hidden=config.hidden_size,
        streams=1,
        layer_count=len(layers),
        vocabulary=config.vocabulary_size,
        rotary_half=config.rotary.rotary_dim // 2,
        eps=config.eps,
        layers=ctypes.addressof(array),
        embedding=reader.pointer(model.weights.embedding),
        frequencies=reader.pointer(model.frequencies),
        final_norm=reader.pointer(model.weights.final_norm_scale),
        head=reader.matrices("model.embed_tokens.weight" if config.ties_embeddings else "lm_head.weight"),
    )


def _layer(reader: MatrixReader, model: Decoder, layer: DecoderLayer, prefix: str) -> mixers.Layer:
    config, weights = model.config, layer.weights
    native = mixers.Layer(
        mixer_norm=reader.pointer(weights.mixer_norm_scale), mlp_norm=reader.pointer(weights.mlp_norm_scale)
    )
    if isinstance(weights.mixer, DeltaNetWeights):
        names = [f"{prefix}linear_attn.{part}" for part in _SEPARATE]
        # published interleaved, it is the twin's rows, which stand in the order that is wanted
        in_all = reader.matrices(*names) if reader.has_all(names) else reader.rows_of(weights.mixer.in_all)
        out = f"{prefix}linear_attn.out_proj.weight"
        native.delta = describe_delta_net(reader, weights.mixer, config.require_delta_net(), in_all, out)
    else:
        native.is_attention = 1
        native.attention = describe_attention(reader, weights.mixer, config.attention, f"{prefix}self_attn.")
    if isinstance(weights.mlp, GatedMlpWeights):
        native.mlp = describe_dense_mlp(reader, weights.mlp.down.shape[1], f"{prefix}mlp.")
    else:
        native.mlp = describe_experts(reader, weights.mlp, config.mlp.require_moe(), f"{prefix}mlp.")
    return native
