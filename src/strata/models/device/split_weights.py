"""Weights of a model over several stages, as one: see `Weights`. A family builds the whole model of it in one call.

Knows which stage has what; a stage that is in another process has a stand-in without values.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from strata.models.blocks.linear import Weight
from strata.models.blocks.moe import Experts
from strata.models.device.layer_split import EMBEDDING, HEAD, LayerSplit
from strata.models.weights import TableGather, TakenRows, Weights


class PlacedWeights(Weights, Protocol):
    """Weights on one device: `DeviceWeights`, and `SkeletonWeights` for a stand-in."""

    device: torch.device


@dataclass(frozen=True)
class SplitWeights:
    """See `Weights`. What a stage is asked for lies on its device."""

    split: LayerSplit
    stages: Sequence[PlacedWeights]  # all of the same source

    dtype = torch.float32

    def names(self) -> Collection[str]:
        return list(dict.fromkeys(name for stage in self.stages for name in stage.names()))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stages[0].shape(name)

    def values(self, name: str) -> torch.Tensor:
        return self.stages[self.split.stage_of_part(name)].values(name)

    def matrix(self, *parts: str | TakenRows) -> Weight:
        """A head that reads the embedding has one of its own, on the last stage."""
        (number,) = {self.split.stage_of_part(part if isinstance(part, str) else part.name) for part in parts}
        with current(self.stages[number].device):
            return self.stages[number].matrix(*parts)

    def table(self, name: str) -> TableGather:
        number = self._stage_of_table(name)
        with current(self.stages[number].device):
            return self.stages[number].table(name)

    def table_in_files(self, name: str) -> TableGather:
        number = self._stage_of_table(name)
        with current(self.stages[number].device):
            return self.stages[number].table_in_files(name)

    def experts(self, prefix: str) -> Experts:
        number = self.split.stage_of_part(prefix)
        with current(self.stages[number].device):
            return self.stages[number].experts(prefix)

    def held_bytes(self, name: str) -> int:
        return self.stages[0].held_bytes(name)

    def _stage_of_table(self, name: str) -> int:
        return 0 if name == EMBEDDING else self.split.stage_of_part(name)


def names_by_stage(split: LayerSplit, names: Collection[str]) -> tuple[list[str], ...]:
    """The tensors that each stage holds, of all that are wanted."""
    is_tied = HEAD not in names
    found: tuple[list[str], ...] = tuple([] for _ in range(split.stages))
    for name in names:
        for number in split.stages_of_tensor(name, is_tied=is_tied):
            found[number].append(name)
    return found


def current(device: torch.device) -> AbstractContextManager[object]:
    """Around work on a card, for what takes the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
