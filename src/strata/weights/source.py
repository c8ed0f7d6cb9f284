"""Where a model gets its tensors from, by canonical name. Knows neither files nor families.

Canonical names are the hub's names with `model.language_model.` shortened to `model.`; expert tensors are
packed (`...mlp.experts.gate_up_proj` [experts, 2 * width, hidden] with the gate rows first and
`...mlp.experts.down_proj` [experts, hidden, width]); an n-gram table is one tensor
`...ple.ple_embedding.ngram_embedding.weight` however many shards hold it. `mtp.*` keep their names.
"""

from collections.abc import Collection
from typing import Protocol

import torch

from strata.errors import WeightFileError


class WeightSource(Protocol):
    """Tensors by canonical name, dequantized on request."""

    def names(self) -> Collection[str]:
        """Every canonical name that this source holds."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor without reading it. Raises WeightFileError if it is missing."""
        ...

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The whole tensor in `dtype` (integers keep theirs). Raises WeightFileError if missing or not finite."""
        ...

    def rows(self, name: str, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of a two-dimensional tensor. row_ids [n] int64 -> [n, width], without reading the rest."""
        ...


class MemorySource:
    """A WeightSource over tensors in memory: tests and freshly trained models."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._find(name).shape)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        found = self._find(name)
        return found.to(dtype) if found.is_floating_point() else found

    def rows(self, name: str, row_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self._find(name)[row_ids].to(dtype)

    def _find(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            raise WeightFileError(f"tensor {name} is missing")
        return self._tensors[name]
