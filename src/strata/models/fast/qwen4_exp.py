"""`qwen4_exp` and its draft layer described to the C++ library. Knows this family's tensor names."""

import ctypes

import torch

from strata.models.blocks.residual_streams import ResidualWeights
from strata.models.fast.matrices import MatrixReader
from strata.models.fast.parts import describe_attention, describe_delta_net, describe_experts
from strata.models.mixers.delta_net import DeltaNetMixer
from strata.models.mixers.indexed_attention import IndexedAttentionMixer
from strata.models.mixers.ngram import NgramPart, ResidentTable
from strata.models.qwen4_exp import Qwen4Exp
from strata.models.qwen4_exp_layer import Qwen4ExpLayer
from strata.native import mixers


def describe_model(model: Qwen4Exp, reader: MatrixReader) -> mixers.ModelShape:
    """The whole model without its draft layer."""
    layers = [_layer(reader, layer, f"model.layers.{index}.") for index, layer in enumerate(model.layers)]
    shape = _shape(model, reader, layers)
    shape.final_residual = _residual(reader, model.final_residual, "model.hyper_connection_mixer.")
    return shape


def describe_draft_layer(model: Qwen4Exp, reader: MatrixReader) -> mixers.ModelShape:
    """The draft layer as a model of one layer whose input is the join."""
    assert model.draft_head is not None
    shape = _shape(model, reader, [_layer(reader, model.draft_head.layer, "mtp.layers.0.")])
    shape.final_residual = _residual(reader, model.draft_head.final_residual, "mtp.hyper_connection_mixer.")
    join = model.draft_head.join
    shape.join = mixers.Join(
        embedding_map=reader.matrices("mtp.fc_embedding.weight"),
        hidden_map=reader.matrices("mtp.fc_hidden.weight"),
        embedding_scale=reader.pointer(join.embedding_scale),
        hidden_scale=reader.pointer(join.hidden_scale),
    )
    return shape


def _shape(model: Qwen4Exp, reader: MatrixReader, layers: list[mixers.Layer]) -> mixers.ModelShape:
    config = model.config
    array = reader.keep((mixers.Layer * len(layers))(*layers))
    return mixers.ModelShape(
        hidden=config.hidden_size,
        streams=config.streams,
        layer_count=len(layers),
        vocabulary=config.vocabulary_size,
        rotary_half=config.rotary.rotary_dim // 2,
        eps=config.eps,
        layers=ctypes.addressof(array),
        embedding=reader.pointer(model.embedding),
        frequencies=reader.pointer(model.frequencies),
        head=reader.matrices("model.embed_tokens.weight" if config.ties_embeddings else "lm_head.weight"),
    )


def _residual(reader: MatrixReader, weights: ResidualWeights, prefix: str) -> mixers.Residual:
    low_rank = weights.up.shape[1]
    has_inject = weights.down.shape[0] > low_rank
    down = [f"{prefix}input_mix_weight_down.weight"] + ([f"{prefix}block_inject_weight.weight"] if has_inject else [])
    return mixers.Residual(
        norm_scale=reader.pointer(weights.norm_scale),
        down=reader.matrices(*down),
        up=reader.matrices(f"{prefix}input_mix_weight_up.weight"),
        low_rank=low_rank,
        has_inject=has_inject,
    )


def _layer(reader: MatrixReader, layer: Qwen4ExpLayer, prefix: str) -> mixers.Layer:
    native = mixers.Layer(
        mixer_residual=_residual(reader, layer.mixer_residual, f"{prefix}attn_hyper_connection."),
        mlp_residual=_residual(reader, layer.moe_residual, f"{prefix}mlp_hyper_connection."),
        mlp=describe_experts(reader, layer.moe_weights, layer.moe_shape, f"{prefix}mlp."),
    )
    mixer = layer.mixer
    if isinstance(mixer, DeltaNetMixer):
        names = f"{prefix}linear_attn."
        in_all = reader.matrices(*(f"{names}in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")))
        native.delta = describe_delta_net(reader, mixer.weights, mixer.shape, in_all, f"{names}out_proj.weight")
    else:
        assert isinstance(mixer, IndexedAttentionMixer)
        native.is_attention = 1
        native.attention = _attention(reader, mixer, f"{prefix}self_attn.")
    if layer.ngram is not None:
        native.ngram = _ngram(reader, layer.ngram, f"{prefix}ple.")
    return native


def _attention(reader: MatrixReader, mixer: IndexedAttentionMixer, prefix: str) -> mixers.Attention:
    native = describe_attention(reader, mixer.weights, mixer.shape, prefix)
    native.index_heads = mixer.indexer.heads
    native.index = reader.matrices(f"{prefix}indexer.index_qk_proj.weight")
    native.index_query_scale = reader.pointer(mixer.indexer_weights.query_scale)
    native.index_key_scale = reader.pointer(mixer.indexer_weights.key_scale)
    native.index_dim = mixer.indexer.head_dim
    native.budget = mixer.indexer.budget
    native.ratio = mixer.indexer.ratio
    native.index_eps = mixer.indexer.eps
    return native


def _ngram(reader: MatrixReader, part: NgramPart, prefix: str) -> mixers.Ngram:
    shape, weights = part.shape, part.weights
    table = part.table.values if isinstance(part.table, ResidentTable) else None
    return mixers.Ngram(
        key=reader.matrices(f"{prefix}key_proj.weight"),
        value=reader.matrices(f"{prefix}value_proj.weight"),
        key_scale=reader.pointer(weights.key_scale),
        query_scale=reader.pointer(weights.query_scale),
        conv_scale=reader.pointer(weights.conv_scale),
        conv=reader.pointer(weights.conv),
        table=reader.pointer(table),
        head_sizes=reader.pointer(torch.tensor(shape.head_sizes)),
        multipliers=reader.pointer(torch.tensor(shape.multipliers)),
        ngram_size=shape.ngram_size,
        heads_per_ngram=shape.heads_per_ngram,
        embed_dim=shape.embed_dim,
        conv_kernel=shape.conv_kernel,
        end_of_text=shape.end_of_text_id,
    )
