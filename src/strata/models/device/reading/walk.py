"""Collecting the launches of a chunk's layer: what is to be added to the streams, and how the next part reads them.

Knows residual streams; knows no mixer and no MLP. Rows that matrices read are bfloat16, what they give is float32.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import ParamSpec

import torch

from strata.kernels.attention_rows import RotationTables
from strata.kernels.read_products import read_products
from strata.kernels.read_streams import ReadAddition, add_norm, low_gates, mix_streams
from strata.kernels.residual_streams.additions import MixerRows, Nothing
from strata.models.device.description import DeviceModel, Gates, ResidualRead
from strata.models.device.launches import Launch
from strata.models.device.reading.room import ReadRoom
from strata.models.device.reading.rows import ChunkRows, Run
from strata.models.device.state import DeviceState
from strata.quant.packed import PackedMatrix

NORM_STEP = "add, norm"  # of any part
GATE_ROWS = 2048  # whose gates are there at once: 42 MB of four streams of 2,560, so that a cache holds most of them
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class ReadInput:
    """What a mixer, an MLP or the head reads, and the strengths with which its output is written."""

    rows: torch.Tensor  # bfloat16 [rows, hidden]
    strengths: torch.Tensor | None  # float32 [rows, streams]; None: added as it is


@dataclass(frozen=True)
class KeptState:
    """Room for what does not grow of a slot's state in front of a chunk's mark, in main memory or on the device."""

    delta: torch.Tensor  # [delta layers, value_heads, key_dim, value_dim]
    conv_tail: torch.Tensor  # [delta layers, kernel - 1, conv_width]
    ngram_tail: torch.Tensor  # [ngram layers, tail rows, streams * hidden]
    history: torch.Tensor  # int32 [1, ngram_size - 1]


KeptStates = Mapping[int, KeptState]  # by the mark's row of the chunk
NOTHING_KEPT: KeptStates = {}


@dataclass(frozen=True)
class Leg:
    """Launches of a layer, between two places where the device may work for others."""

    layer: int
    number: int  # of those of this layer
    launches: Sequence[Launch]
    sent_bytes: int = 0  # of experts on their way, for which it waits


@dataclass
class ReadWalk:
    """The launches that nobody has taken yet, and what the last part left to be added."""

    model: DeviceModel
    state: DeviceState
    rotation: RotationTables
    room: ReadRoom
    chunk: ChunkRows
    kept: KeptStates
    asked: torch.Tensor | None = None  # int32 [layers with experts, experts]: where the last rows' experts are counted
    addition: ReadAddition = field(default_factory=Nothing)
    layer: int | None = None
    kind: str = "chunk"
    _launches: list[Launch] = field(default_factory=list)
    _pauses: list[int] = field(default_factory=list)  # launches in front of each
    _layer: int = 0  # whose legs are taken
    _legs: int = 0  # of this layer so far

    @property
    def streams(self) -> torch.Tensor:
        """The residual streams [rows, streams * hidden]."""
        return self.room.take("streams", self.chunk.count, self.model.stream_width)

    def begin_layer(self, index: int, kind: str) -> None:
        """The legs from now on are of this layer."""
        self.layer, self.kind = index, kind
        self._layer, self._legs = index, 0

    def pause(self) -> None:
        """Behind the launches so far the device may work for others."""
        self._pauses.append(len(self._launches))

    def legs(self, sent_bytes: int = 0) -> list[Leg]:
        """The launches so far, cut at pauses; from now on they are the caller's. sent_bytes: see `Leg`."""
        launches = self.take()
        cuts, self._pauses = sorted({0, *self._pauses, len(launches)}), []
        first = self._legs
        self._legs += len(cuts) - 1
        return [
            Leg(self._layer, first + number, launches[start:stop], sent_bytes)
            for number, (start, stop) in enumerate(pairwise(cuts))
        ]

    def take(self) -> list[Launch]:
        """The launches so far, of no leg."""
        launches, self._launches = self._launches, []
        return launches

    def launch(
        self, step: str, op: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> None:
        """Add one call of an op."""
        self._launches.append(Launch(self.layer, self.kind, step, partial(op, *args, **kwargs)))  # type: ignore[arg-type]

    def multiply(self, step: str, matrices: Sequence[PackedMatrix], x: torch.Tensor, out: torch.Tensor) -> None:
        """Add a product."""
        self.launch(step, read_products, matrices, x, out)

    def read(self, part: str, residual: ResidualRead) -> ReadInput:
        """Add the launches that make a part's input of the streams."""
        rows = Run(0, self.chunk.count)
        found = self.read_run(part, residual, rows, self.addition)
        self.addition = Nothing()
        return found

    def read_run(self, part: str, residual: ResidualRead, run: Run, addition: ReadAddition) -> ReadInput:
        """The same of some rows, whose addition is given."""
        model, count = self.model, run.count
        streams = self.streams[run.start : run.stop]
        normed = self.room.take("normed", count, model.stream_width, dtype=torch.bfloat16)
        scale = residual.norm_scale
        self.launch(f"{part}: {NORM_STEP}", add_norm, streams, addition, scale, model.eps, model.streams, normed)
        if residual.gates is None:
            return ReadInput(normed, None)
        return self._mix(part, residual.gates, normed)

    def _mix(self, part: str, gates: Gates, normed: torch.Tensor) -> ReadInput:
        room, model, count = self.room, self.model, normed.shape[0]
        shares = room.take("shares", count, gates.down.shape[0])
        low = room.take("low", count, gates.up.layout.columns, dtype=torch.bfloat16)
        strengths = room.take("strengths", count, model.streams) if gates.has_strengths else None
        mixed = room.take("mixed", count, model.hidden, dtype=torch.bfloat16)
        self.multiply(f"{part}: gates down", gates.down.parts, normed, shares)
        self.launch(f"{part}: low", low_gates, shares, model.streams, low, strengths)
        for run in Run(0, count).cut(GATE_ROWS):
            products = room.take("gates", run.count, model.stream_width, dtype=torch.bfloat16)
            rows = slice(run.start, run.stop)
            self.multiply(f"{part}: gates up", (gates.up,), low[rows], products)
            self.launch(f"{part}: mix", mix_streams, products, normed[rows], model.streams, mixed[rows])
        return ReadInput(mixed, strengths)


def run_of(addition: ReadAddition, run: Run) -> ReadAddition:
    """What is added to some rows alone."""
    if not isinstance(addition, MixerRows):
        return addition
    rows = slice(run.start, run.stop)
    strengths = None if addition.strengths is None else addition.strengths[rows]
    return MixerRows(addition.output[rows], strengths)
