"""How a family asks for its weights, however they are held: vectors, matrices, tables and experts by canonical name.

Knows what blocks compute with; knows no family and no file. `TensorWeights` holds everything in torch, in one dtype;
`fast/loading.py` holds matrices packed, in the code that they were published in.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import torch

from strata.models.blocks.linear import Weight
from strata.models.blocks.moe import Experts, ExpertTensors
from strata.weights.source import WeightSource

# Rows of a table: ids [n] int64 -> [n, width]. The table itself may stand in a file.
TableGather = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class TakenRows:
    """Some rows of a named matrix, in an order of their own."""

    name: str
    rows: torch.Tensor  # [n] int64


class Weights(Protocol):
    """One model's weights. Each method raises WeightFileError for what is missing, broken or not finite."""

    dtype: torch.dtype  # that blocks compute in

    def names(self) -> Collection[str]:
        """Every canonical name that there is."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        ...

    def values(self, name: str) -> torch.Tensor:
        """A vector, taps or constants: a tensor in the compute dtype (integers keep theirs)."""
        ...

    def matrix(self, *parts: str | TakenRows) -> Weight:
        """Matrices of the same width, under one another."""
        ...

    def table(self, name: str) -> TableGather:
        """A matrix whose rows are looked up, held in memory."""
        ...

    def table_in_files(self, name: str) -> TableGather:
        """A matrix whose rows are looked up in the files, one by one."""
        ...

    def experts(self, prefix: str) -> Experts:
        """The routed experts of a layer; `prefix` as in `model.layers.3.mlp.`."""
        ...

    def held_bytes(self, name: str) -> int:
        """What a matrix takes in memory."""
        ...


@dataclass(frozen=True)
class ResidentTable:
    """A table of values in memory, as a `TableGather`."""

    values: torch.Tensor  # [table rows, width]

    def __call__(self, row_ids: torch.Tensor) -> torch.Tensor:
        return self.values[row_ids]


class TensorWeights:
    """See `Weights`: everything as tensors in `dtype`."""

    def __init__(self, source: WeightSource, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._source = source
        self._tables: dict[str, torch.Tensor] = {}  # a tied head asks for the embedding again

    def names(self) -> Collection[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._source.shape(name))

    def values(self, name: str) -> torch.Tensor:
        return self._source.tensor(name, self.dtype).contiguous()

    def matrix(self, *parts: str | TakenRows) -> Weight:
        found = [self._rows(part) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found)

    def table(self, name: str) -> TableGather:
        if name not in self._tables:
            self._tables[name] = self.values(name)
        return ResidentTable(self._tables[name])

    def table_in_files(self, name: str) -> TableGather:
        return lambda row_ids: self._source.rows(name, row_ids, self.dtype)

    def experts(self, prefix: str) -> Experts:
        return ExpertTensors(self.values(f"{prefix}experts.gate_up_proj"), self.values(f"{prefix}experts.down_proj"))

    def held_bytes(self, name: str) -> int:
        rows, columns = self.shape(name)
        return rows * columns * self.dtype.itemsize

    def _rows(self, part: str | TakenRows) -> torch.Tensor:
        if isinstance(part, TakenRows):
            return self.values(part.name)[part.rows]
        return self._tables[part] if part in self._tables else self.values(part)
