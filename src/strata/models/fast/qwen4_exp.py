"""`qwen4_exp` and its draft layer described to the C++ library."""

import ctypes

import torch

from strata.models.blocks.residual_streams import ResidualWeights
from strata.models.fast.parts import Kept, describe_attention, describe_delta_net, describe_experts
from strata.models.mixers.delta_net import DeltaNetMixer
from strata.models.mixers.indexed_attention import IndexedAttentionMixer
from strata.models.mixers.ngram import NgramPart
from strata.models.qwen4_exp import Qwen4Exp
from strata.models.qwen4_exp_layer import Qwen4ExpLayer
from strata.native import mixers


def describe_model(model: Qwen4Exp, kept: Kept) -> mixers.ModelShape:
    """The whole model without its draft layer."""
    shape = _shape(model, kept, [_layer(kept, layer) for layer in model.layers])
    shape.final_residual = _residual(kept, model.final_residual)
    return shape


def describe_draft_layer(model: Qwen4Exp, kept: Kept) -> mixers.ModelShape:
    """The draft layer as a model of one layer whose input is the join."""
    assert model.draft_head is not None
    shape = _shape(model, kept, [_layer(kept, model.draft_head.layer)])
    shape.final_residual = _residual(kept, model.draft_head.final_residual)
    join = model.draft_head.join
    shape.join = mixers.Join(
        embedding_map=kept.matrices(join.embedding_map),
        hidden_map=kept.matrices(join.hidden_map),
        embedding_scale=kept.pointer(join.embedding_scale),
        hidden_scale=kept.pointer(join.hidden_scale),
    )
    return shape


def _shape(model: Qwen4Exp, kept: Kept, layers: list[mixers.Layer]) -> mixers.ModelShape:
    config = model.config
    array = kept.keep((mixers.Layer * len(layers))(*layers))
    return mixers.ModelShape(
        hidden=config.hidden_size,
        streams=config.streams,
        layer_count=len(layers),
        vocabulary=config.vocabulary_size,
        rotary_half=config.rotary.rotary_dim // 2,
        eps=config.eps,
        layers=ctypes.addressof(array),
        embedding=kept.table(model.embedding),
        frequencies=kept.pointer(model.frequencies),
        head=kept.matrices(model.head_weight),
    )


def _residual(kept: Kept, weights: ResidualWeights) -> mixers.Residual:
    low_rank = weights.up.shape[1]
    return mixers.Residual(
        norm_scale=kept.pointer(weights.norm_scale),
        down=kept.matrices(weights.down),
        up=kept.matrices(weights.up),
        low_rank=low_rank,
        has_inject=weights.down.shape[0] > low_rank,
    )


def _layer(kept: Kept, layer: Qwen4ExpLayer) -> mixers.Layer:
    native = mixers.Layer(
        mixer_residual=_residual(kept, layer.mixer_residual),
        mlp_residual=_residual(kept, layer.moe_residual),
        mlp=describe_experts(kept, layer.moe_weights, layer.moe_shape),
    )
    mixer = layer.mixer
    if isinstance(mixer, DeltaNetMixer):
        native.delta = describe_delta_net(kept, mixer.weights, mixer.shape)
    else:
        assert isinstance(mixer, IndexedAttentionMixer)
        native.is_attention = 1
        native.attention = _attention(kept, mixer)
    if layer.ngram is not None:
        native.ngram = _ngram(kept, layer.ngram)
    return native


def _attention(kept: Kept, mixer: IndexedAttentionMixer) -> mixers.Attention:
    native = describe_attention(kept, mixer.weights, mixer.shape)
    native.index_heads = mixer.indexer.heads
    native.index = kept.matrices(mixer.indexer_weights.query_key)
    native.index_query_scale = kept.pointer(mixer.indexer_weights.query_scale)
    native.index_key_scale = kept.pointer(mixer.indexer_weights.key_scale)
    native.index_dim = mixer.indexer.head_dim
    native.budget = mixer.indexer.budget
    native.ratio = mixer.indexer.ratio
    native.index_eps = mixer.indexer.eps
    return native


def _ngram(kept: Kept, part: NgramPart) -> mixers.Ngram:
    shape, weights = part.shape, part.weights
    return mixers.Ngram(
        key=kept.matrices(weights.key),
        value=kept.matrices(weights.value),
        key_scale=kept.pointer(weights.key_scale),
        query_scale=kept.pointer(weights.query_scale),
        conv_scale=kept.pointer(weights.conv_scale),
        conv=kept.pointer(weights.conv),
        table=kept.table(part.table),
        head_sizes=kept.pointer(torch.tensor(shape.head_sizes)),
        multipliers=kept.pointer(torch.tensor(shape.multipliers)),
        ngram_size=shape.ngram_size,
        heads_per_ngram=shape.heads_per_ngram,
        embed_dim=shape.embed_dim,
        conv_kernel=shape.conv_kernel,
        end_of_text=shape.end_of_text_id,
    )
