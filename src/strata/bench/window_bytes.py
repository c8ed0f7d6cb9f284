"""What one decode window must read and write on a card: weights, state and cells, as bytes. Pure arithmetic.

limit = (dense + routed + state + cells) / speed of copying inside the card
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strata.models.device.description import (
    AttentionMixer,
    DeviceLayer,
    DeviceModel,
    ResidualRead,
    SparseMlp,
)
from strata.quant.cell_codes import CellKind

STATE_PASSES = 2  # read and written
FLOAT_BYTES = 4


@dataclass(frozen=True)
class WindowBytes:
    """Bytes of one window."""

    dense: int  # every matrix that all rows read
    routed: int  # distinct experts
    state: int
    cells: int

    @property
    def total(self) -> int:
        return self.dense + self.routed + self.state + self.cells


def window_bytes(
    model: DeviceModel, slots: int, context: int, kind: CellKind, distinct: Sequence[float] | None = None
) -> WindowBytes:
    """A window of one row for each of `slots` conversations of `context` tokens, kept as `kind`.

    distinct: different experts of each layer that has some; None: as are to be expected where all are equally likely.
    """
    sparse = [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMlp)]
    if distinct is None:
        routed = [round(routed_bytes(mlp, slots)) for mlp in sparse]
    else:
        routed = [round(n * mlp.blobs.layout.total_bytes) for n, mlp in zip(distinct, sparse, strict=True)]
    head = 0 if model.head is None else model.head.total_bytes
    heads = head + (0 if model.final_read is None else _residual_bytes(model.final_read))
    return WindowBytes(
        dense=heads + sum(map(_layer_bytes, model.layers)),
        routed=sum(routed),
        state=STATE_PASSES * slots * model.sizes.fixed_bytes,
        cells=slots * sum(cell_bytes(each, context, kind) + pooled_bytes(each, context) for each in _attention(model)),
    )


def expected_distinct(choices: int, of: int, rows: int) -> float:
    """How many of `of` are chosen at least once, if each of `rows` rows chooses `choices` different ones at random."""
    return of * (1 - (1 - choices / of) ** rows)


def _attention(model: DeviceModel) -> Iterator[AttentionMixer]:
    return (layer.mixer for layer in model.layers if isinstance(layer.mixer, AttentionMixer))


def _layer_bytes(layer: DeviceLayer) -> int:
    """The matrices of a layer that every row reads."""
    mixer, mlp, ngram = layer.mixer, layer.mlp, layer.ngram
    first = mixer.projections if isinstance(mixer, AttentionMixer) else mixer.in_all
    size = first.total_bytes + mixer.out.total_bytes
    size += _residual_bytes(layer.mixer_read) + _residual_bytes(layer.mlp_read)
    if ngram is not None:
        size += ngram.key.total_bytes + ngram.value.total_bytes
    if not isinstance(mlp, SparseMlp):
        return size + mlp.gate_up.total_bytes + mlp.down.total_bytes
    size += mlp.router.total_bytes
    return size if mlp.shared is None else size + mlp.shared.gate_up.total_bytes + mlp.shared.down.layout.total_bytes


def _residual_bytes(read: ResidualRead) -> int:
    return 0 if read.gates is None else read.gates.down.total_bytes + read.gates.up.layout.total_bytes


def routed_bytes(mlp: SparseMlp, rows: int) -> float:
    """Distinct experts of a window's rows."""
    return expected_distinct(mlp.experts_per_token, mlp.router.shape[0], rows) * mlp.blobs.layout.total_bytes


def cell_bytes(mixer: AttentionMixer, context: int, kind: CellKind) -> int:
    """Keys and values that one row attends to."""
    shape = mixer.layer.shape
    cells = context if shape.indexer is None else min(context, shape.indexer.budget)
    return cells * shape.kv_heads * kind.head_bytes(shape.head_dim)


def pooled_bytes(mixer: AttentionMixer, context: int) -> int:
    """Keys of blocks among which one row chooses; none where it sees every cell."""
    indexer = mixer.layer.shape.indexer
    if indexer is None or context <= indexer.budget:
        return 0
    return context // indexer.ratio * indexer.head_dim * FLOAT_BYTES
