"""The launches of one layer of a chunk, of what stands before the first layer and of what follows the last.

Knows the order of a layer's parts; knows no memory and no request.
"""

from collections.abc import Iterator

import torch

from strata.experts.feed import ExpertFeed
from strata.kernels.embed_rows import embed_rows
from strata.models.device.description import DeltaMixer, DeviceModel, SparseMlp
from strata.models.device.launches import Launch
from strata.models.device.reading.mixers import append_attention, append_delta, append_ngram, history_of
from strata.models.device.reading.mlps import append_dense, sparse_legs
from strata.models.device.reading.rows import Run
from strata.models.device.reading.walk import Leg, ReadWalk, run_of

HEAD_ROWS = 64  # whose logits are there at once


def layer_legs(walk: ReadWalk, index: int, feed: ExpertFeed) -> Iterator[Leg]:
    """One layer; what a leg launches is launched before the next one is asked for, see `sparse_legs`.

    With the first layer of a model tokens become its streams; with the last one the slot's history is moved on, which
    no n-gram layer needs as it was any more.
    """
    if index == 0 and walk.model.is_first:
        walk.launch("embed", embed_rows, walk.model.embedding, walk.chunk.tokens, walk.streams, walk.model.streams)
    layer = walk.model.layers[index]
    walk.begin_layer(index, layer.kind)
    if layer.ngram is not None:
        append_ngram(walk, layer.ngram)
        walk.pause()
    x = walk.read("mixer", layer.mixer_read)
    if isinstance(layer.mixer, DeltaMixer):
        append_delta(walk, layer.mixer, x)
    else:
        append_attention(walk, layer.mixer, x)
    x = walk.read("mlp", layer.mlp_read)
    if isinstance(layer.mlp, SparseMlp):
        yield from sparse_legs(walk, layer.mlp, x, sparse_index(walk.model, index), feed)
    else:
        append_dense(walk, layer.mlp, x)
    if index + 1 == len(walk.model.layers) and walk.model.sizes.ngram_layers:
        walk.layer, walk.kind = None, "chunk"
        slot = walk.chunk.slot
        walk.launch("history", walk.state.history[slot].copy_, history_of(walk)[slot])
    yield from walk.legs()


def head_launches(walk: ReadWalk, run: Run) -> list[Launch]:
    """Logits float32 [run, vocabulary] of at most HEAD_ROWS rows, into `logits_of`; the streams of each only once.

    Of a model's last part.
    """
    final_read, head = walk.model.final_read, walk.model.head
    assert final_read is not None and head is not None, "only the last part of a model has a head"
    walk.layer, walk.kind = None, "chunk"
    x = walk.read_run("head", final_read, run, run_of(walk.addition, run))
    walk.multiply("head", head.parts, x.rows, logits_of(walk, run))
    return walk.take()


def logits_of(walk: ReadWalk, run: Run) -> torch.Tensor:
    """Where the logits of a run are."""
    return walk.room.take("logits", run.count, walk.model.vocabulary)


def sparse_index(model: DeviceModel, index: int) -> int:
    """The number of a layer among those that have experts."""
    return sum(isinstance(layer.mlp, SparseMlp) for layer in model.layers[:index])
