"""A model's windows of one bucket as lists of launches: the walk over its layers that every family shares.

Knows the order of parts; the launches of a mixer are in `mixers.py`, those of an MLP in `mlps.py`. Building a program
launches nothing.
"""

from dataclasses import dataclass

import torch

from strata.kernels.delta_rows import DeltaStates, SegmentLengths, commit_delta
from strata.kernels.embed_rows import embed_rows
from strata.kernels.ngram_rows import commit_ngram
from strata.models.device.buffers import Buffers
from strata.models.device.description import DeltaMixer, DeviceLayer
from strata.models.device.launches import Program
from strata.models.device.mixers import append_asking, append_attention, append_delta, append_ngram
from strata.models.device.mlps import append_mlp, readers_of
from strata.models.device.walk import Readers, Walk


@dataclass(frozen=True)
class ModelProgram:
    """The launches of one bucket, in the order in which they run."""

    # Tokens, or the streams that another part of the model left -> streams; writes cells, certain segments' recurrent
    # state, and what the commit replays. The last layer's output is left to the head, unless the part has none.
    layers: Program
    head: Program  # streams -> logits; hidden rows are complete behind it; nothing unless the part is the last one
    commit: Program  # the accepted rows become state; behind these layers


def build_program(buffers: Buffers, lengths: SegmentLengths, accepted: torch.Tensor) -> ModelProgram:
    """The launches over these buffers; accepted int32 [segments]: rows of each segment that the commit takes.

    A certain segment's are all of its rows.
    """
    model = buffers.model
    walk = Walk(buffers, lengths)
    if model.is_first:
        walk.launch("embed", embed_rows, model.embedding, buffers.rows.tokens, buffers.streams, model.streams)
    for layer in model.layers:
        if layer.ngram is not None:
            append_asking(walk, layer.ngram)
    for index, layer in enumerate(model.layers):
        walk.layer, walk.kind = index, layer.kind
        _append_layer(walk, layer)
    walk.layer, walk.kind = None, "window"
    if model.final_read is None or model.head is None:
        walk.finish_streams()
        return ModelProgram(walk.launches, [], _commit(buffers, lengths, accepted))
    layers, walk.launches = walk.launches, []
    x = walk.read("head", model.final_read, Readers.of(model.head))
    walk.multiply("head", model.head, x.rows, buffers.logits)
    return ModelProgram(layers, walk.launches, _commit(buffers, lengths, accepted))


def _append_layer(walk: Walk, layer: DeviceLayer) -> None:
    if layer.ngram is not None:
        append_ngram(walk, layer.ngram)
    mixer = layer.mixer
    if isinstance(mixer, DeltaMixer):
        append_delta(walk, mixer, walk.read("mixer", layer.mixer_read, Readers.of(mixer.in_all)))
    else:
        append_attention(walk, mixer, walk.read("mixer", layer.mixer_read, Readers.of(mixer.projections)))
    append_mlp(walk, layer.mlp, walk.read("mlp", layer.mlp_read, readers_of(layer.mlp)))


def _commit(buffers: Buffers, lengths: SegmentLengths, accepted: torch.Tensor) -> Program:
    walk, model, state = Walk(buffers, lengths, kind="commit"), buffers.model, buffers.state
    if model.delta_shape is not None and model.delta_vectors is not None:
        states = DeltaStates(state.delta, state.conv_tail)
        stored, vectors, shape = buffers.stored_delta, model.delta_vectors, model.delta_shape
        walk.launch("commit: delta", commit_delta, states, stored, buffers.rows, lengths, accepted, vectors, shape)
    if state.sizes.ngram_layers:
        tails, stored = state.ngram_tail, buffers.stored_ngrams
        walk.launch("commit: n-grams", commit_ngram, state.history, tails, stored, buffers.rows, accepted)
    return walk.launches
