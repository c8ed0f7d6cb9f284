"""Collecting the launches of one bucket: what is to be added to the streams, and how the next part reads them.

Knows residual streams; knows no mixer and no MLP.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec

import torch

from strata.kernels.delta_rows import SegmentLengths
from strata.kernels.packed_rows import multiply_into
from strata.kernels.packed_rows.rows_out import RowsOut
from strata.kernels.residual_streams import Addition, Nothing, add_and_norm
from strata.kernels.stream_gates import LowOut, arrival_columns, gates_down, stream_gates
from strata.models.device.buffers import Buffers
from strata.models.device.description import Gates, ResidualRead
from strata.models.device.held import DeviceMatrices
from strata.models.device.launches import Launch
from strata.quant.layout import MatrixLayout

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class Readers:
    """Who reads a layer's input: matrices of these layouts, and whether somebody reads it as it is."""

    layouts: Sequence[MatrixLayout]
    read_plain: bool = False

    @classmethod
    def of(cls, *matrices: DeviceMatrices, read_plain: bool = False) -> "Readers":
        """Matrices that share an input."""
        return cls([part.layout for each in matrices for part in each.parts], read_plain)


@dataclass(frozen=True)
class LayerInput:
    """What a mixer, an MLP or the head reads, and the strengths with which its output is written."""

    rows: RowsOut  # [rows, hidden]
    strengths: torch.Tensor | None  # [rows, streams]; None: added as it is


@dataclass
class Walk:
    """The launches so far and what the last part left to be added."""

    buffers: Buffers
    lengths: SegmentLengths
    launches: list[Launch] = field(default_factory=list)
    addition: Addition = field(default_factory=Nothing)
    layer: int | None = None
    kind: str = "window"

    def launch(
        self, step: str, op: Callable[Arguments, None], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> None:
        """Add one call of an op."""
        self.launches.append(Launch(self.layer, self.kind, step, partial(op, *args, **kwargs)))

    def multiply(self, step: str, matrices: DeviceMatrices, x: RowsOut, out: torch.Tensor) -> None:
        """Add a product."""
        self.launch(step, multiply_into, matrices.parts, x, out)

    def norm(self, step: str, scale: torch.Tensor, out: RowsOut) -> None:
        """Add what is left to be added to the streams, and norm them."""
        model = self.buffers.model
        self.launch(step, add_and_norm, self.buffers.streams, self.addition, scale, model.eps, model.streams, out)
        self.addition = Nothing()

    def finish_streams(self) -> None:
        """Add what is left to be added to the streams, for whoever takes them next. The op norms them too: in vain."""
        buffers = self.buffers
        spare = RowsOut(buffers.take("spare norm", buffers.model.stream_width), None)
        scale = buffers.model.layers[-1].mlp_read.norm_scale
        self.norm("hand over: add", scale, spare)

    def read(self, part: str, residual: ResidualRead, readers: Readers) -> LayerInput:
        """Add the launches that make a part's input of the streams."""
        if residual.gates is None:
            normed = self.buffers.room("normed", readers.layouts, readers.read_plain)
            self.norm(f"{part}: add, norm", residual.norm_scale, normed)
            return LayerInput(normed, None)
        return self._read_streams(part, residual.norm_scale, residual.gates, readers)

    def _read_streams(self, part: str, scale: torch.Tensor, gates: Gates, readers: Readers) -> LayerInput:
        buffers, streams = self.buffers, self.buffers.model.streams
        normed = buffers.room("normed", [each.layout for each in gates.down.parts], reads_plain=True)
        assert normed.plain is not None
        self.norm(f"{part}: add, norm", scale, normed)
        width = gates.down.shape[0]
        low = LowOut(
            buffers.room("low", [gates.up.layout]),
            buffers.take("strengths", streams) if gates.has_strengths else None,
            buffers.take("shares", width),
            buffers.counters("gate arrivals", arrival_columns(width)),
        )
        self.launch(f"{part}: gates down", gates_down, gates.down.parts, normed, streams, low)
        mixed = buffers.room("mixed", readers.layouts, readers.read_plain)
        self.launch(f"{part}: gates up, mix", stream_gates, low.low, normed.plain, gates.up, streams, mixed)
        return LayerInput(mixed, low.strengths)
