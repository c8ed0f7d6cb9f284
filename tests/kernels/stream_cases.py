"""Random streams and additions in one place, for the tests of the kernels around residual streams.

Knows no kernel. Everything follows from a seed; made in main memory.
"""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch

from strata.kernels.launch_shapes import LaunchShape
from strata.kernels.packed_rows.rows_out import Activations, RowsOut
from strata.kernels.residual_streams.additions import Addition, ExpertRows, MixerRows, Nothing, Values
from tests.kernels.random_matrices import random_rows

Record = TypeVar("Record")


@dataclass(frozen=True)
class StreamSizes:
    """One shape of residual streams."""

    rows: int
    streams: int
    hidden: int
    ranks: int = 0

    @property
    def width(self) -> int:
        """Columns of a row of streams."""
        return self.streams * self.hidden


def additions(seed: int, sizes: StreamSizes) -> dict[str, Addition]:
    """One of every kind, by name; with several streams, every one has its own strength."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    rows, hidden, ranks = sizes.rows, sizes.hidden, sizes.ranks
    strengths = 2 * uniform(rows, sizes.streams) if sizes.streams > 1 else None
    by_rank = random_rows(seed, rows * ranks, hidden).reshape(rows, ranks, hidden)
    weights, shared, gates = uniform(rows, ranks), random_rows(seed + 1, rows, hidden), uniform(rows)
    return {
        "nothing": Nothing(),
        "mixer": MixerRows(random_rows(seed + 2, rows, hidden), strengths),
        "experts": ExpertRows(by_rank, weights, None, None, strengths),
        "experts and shared": ExpertRows(by_rank, weights, shared, None, strengths),
        "experts and gated": ExpertRows(by_rank, weights, shared, gates, strengths),
        "values": Values(random_rows(seed + 3, rows, sizes.width)),
    }


def moved(record: Record, device: torch.device) -> Record:
    """A dataclass of tensors, on a device."""
    tensors = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{name: None if each is None else each.to(device) for name, each in tensors.items()})


def first_rows(record: Record, first: int, last: int) -> Record:
    """The same addition for some of its rows alone."""
    tensors = {field.name: getattr(record, field.name) for field in fields(record)}
    cut = {name: None if each is None else each[first:last].contiguous() for name, each in tensors.items()}
    return replace(record, **cut)


def norm_scale(seed: int, width: int) -> torch.Tensor:
    """Scales around one."""
    return 1 + 0.1 * torch.randn(width, generator=torch.Generator().manual_seed(seed))


def room(rows: int, columns: int, device: torch.device, plain: bool = True, quantized: bool = False) -> RowsOut:
    """Room full of NaN and of impossible integers."""
    values = torch.full((rows, columns), float("nan"), device=device) if plain else None
    made = Activations.empty(rows, columns // 32, device, LaunchShape()) if quantized else None
    if made is not None:
        made.values.fill_(-1)
        made.records.fill_(-1)
    return RowsOut(values, made)
