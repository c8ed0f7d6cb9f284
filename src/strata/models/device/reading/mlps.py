"""The launches of a chunk's MLP: routed experts batch by batch with a shared one, or one dense MLP. No arithmetic."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from strata.experts.feed import ExpertBatch, ExpertFeed
from strata.kernels.read_experts import (
    ReadExperts,
    ReadWork,
    combine_ranks,
    count_places,
    experts_down,
    experts_hidden,
    group_places,
    most_row_tiles,
    route_many,
)
from strata.kernels.read_streams import gate_shares, gated_hidden
from strata.kernels.residual_streams.additions import MixerRows
from strata.models.device.description import DenseMlp, SparseMlp
from strata.models.device.reading.rows import Run
from strata.models.device.reading.walk import Leg, ReadInput, ReadWalk

GROUP_STEP = "experts: group"
HOLD_STEP = "experts: on their way"  # until they are there
COUNTED_ROWS = 64  # of a prompt, its last ones, whose experts are counted
DENSE_ROWS = 1024  # whose gate and up are there at once


def append_dense(walk: ReadWalk, mlp: DenseMlp, x: ReadInput) -> None:
    """One gated MLP, some rows after others."""
    room, width = walk.room, mlp.gate_up.shape[0]
    output = room.take("output", walk.chunk.count, walk.model.hidden)
    for run in Run(0, walk.chunk.count).cut(DENSE_ROWS):
        rows = slice(run.start, run.stop)
        gate_up = room.take("wide", run.count, width)
        hidden = room.take("mlp hidden", run.count, width // 2, dtype=torch.bfloat16)
        walk.multiply("mlp: gate, up", mlp.gate_up.parts, x.rows[rows], gate_up)
        walk.launch("mlp: hidden", gated_hidden, gate_up, hidden)
        walk.multiply("mlp: down", mlp.down.parts, hidden, output[rows])
    walk.addition = MixerRows(output, x.strengths)


@dataclass(frozen=True)
class ExpertRoom:
    """What a layer's experts read and write beside their rows."""

    ids: torch.Tensor  # int32 [rows, ranks]
    weights: torch.Tensor  # float32 [rows, ranks]
    work: ReadWork
    hidden: torch.Tensor  # bfloat16 [rows * ranks, width]
    by_rank: torch.Tensor  # bfloat16 [rows, ranks, hidden]

    @classmethod
    def of(cls, walk: ReadWalk, mlp: SparseMlp) -> "ExpertRoom":
        """The walk's memory. Products of the router are over where `by_rank` begins, normed streams where `hidden` is.

        Without gates the normed rows are what the experts read.
        """
        room, rows, ranks = walk.room, walk.chunk.count, mlp.experts_per_token
        has_gates = walk.model.streams > 1
        places, experts = rows * ranks, mlp.router.shape[0]
        return cls(
            room.take("ids", rows, ranks, dtype=torch.int32),
            room.take("weights", rows, ranks),
            ReadWork(
                room.take("order", places, dtype=torch.int32), room.take("starts", experts + 1, dtype=torch.int32)
            ),
            room.take(
                "normed" if has_gates else "expert hidden", places, mlp.blobs.layout.gate.rows, dtype=torch.bfloat16
            ),
            room.take("wide", rows, ranks, walk.model.hidden, dtype=torch.bfloat16),
        )


@dataclass(frozen=True)
class SharedRows:
    """What the expert of every row gave."""

    rows: torch.Tensor  # bfloat16 [rows, hidden]
    weights: torch.Tensor | None  # float32 [rows]


def sparse_legs(walk: ReadWalk, mlp: SparseMlp, x: ReadInput, index: int, feed: ExpertFeed) -> Iterator[Leg]:
    """Routed experts of the layer number `index` of those that have some, and the shared one.

    What a leg launches is launched before the next one is asked for: where experts are sent as rows need them the
    routing is read.
    """
    made = ExpertRoom.of(walk, mlp)
    shared = append_routing(walk, mlp, x, made)
    if walk.asked is not None:
        walk.launch("experts: count", count_places, made.ids[-COUNTED_ROWS:], walk.asked[index])
    yield from walk.legs()
    sent_bytes = 0
    for batch in feed.batches(index, asked_experts(made.work) if feed.asks_for_routing else None):
        yield from walk.legs(sent_bytes)  # of the batch before
        append_batch(walk, mlp, x, made, batch, feed)
        sent_bytes = batch.sent_bytes
    append_sum(walk, x, made, shared)
    yield from walk.legs(sent_bytes)


def append_routing(walk: ReadWalk, mlp: SparseMlp, x: ReadInput, made: ExpertRoom) -> SharedRows | None:
    """Where rows go; and the shared expert, as its gate and up are multiplied with the router."""
    room, rows, experts = walk.room, walk.chunk.count, mlp.router.shape[0]
    shared = mlp.shared
    parts = (*mlp.router.parts, *(() if shared is None else shared.gate_up.parts))
    products = room.take("wide", rows, sum(part.layout.rows for part in parts))
    walk.multiply("experts: router, shared gate, up", parts, x.rows, products)
    walk.launch("experts: route", route_many, products[:, :experts], mlp.normalize, made.ids, made.weights)
    walk.launch(GROUP_STEP, group_places, made.ids, made.work)
    if shared is None:
        return None
    hidden = room.take("shared hidden", rows, shared.down.layout.columns, dtype=torch.bfloat16)
    output = room.take("shared", rows, walk.model.hidden, dtype=torch.bfloat16)
    walk.launch("experts: shared hidden", gated_hidden, products[:, experts:], hidden)
    walk.multiply("experts: shared down", (shared.down,), hidden, output)
    if shared.gate is None:
        return SharedRows(output, None)
    weights = room.take("shared weights", rows)
    walk.launch("experts: shared gate", gate_shares, x.rows, shared.gate, weights)
    return SharedRows(output, weights)


def append_batch(
    walk: ReadWalk, mlp: SparseMlp, x: ReadInput, made: ExpertRoom, batch: ExpertBatch, feed: ExpertFeed
) -> None:
    """The places of some experts, once these are there."""
    some, work = ReadExperts(mlp.blobs.layout, batch.addresses, batch.chosen), made.work
    most_tiles = most_row_tiles(work.order.numel(), batch.chosen.numel())
    if batch.sent_bytes:
        walk.launch(HOLD_STEP, feed.hold)
    walk.launch("experts: gate, up", experts_hidden, some, x.rows, work, most_tiles, made.hidden)
    walk.launch("experts: down", experts_down, some, made.hidden, work, most_tiles, made.by_rank)
    if batch.sent_bytes:
        walk.launch("experts: let go", feed.let_go)


def append_sum(walk: ReadWalk, x: ReadInput, made: ExpertRoom, shared: SharedRows | None) -> None:
    """All ranks and the shared expert as one row."""
    output = walk.room.take("output", walk.chunk.count, walk.model.hidden)
    rows, weights = (None, None) if shared is None else (shared.rows, shared.weights)
    walk.launch("experts: combine", combine_ranks, made.by_rank, made.weights, rows, weights, output)
    walk.addition = MixerRows(output, x.strengths)


def asked_experts(work: ReadWork) -> list[int]:
    """Experts that some row goes to; waits for the device."""
    starts = work.starts.cpu()
    return (starts[1:] > starts[:-1]).nonzero().flatten().tolist()
