"""What a run of a model's layers asks of a card, as a part of what the whole model asks: its request of a memory plan.

Pure arithmetic over bytes; knows no device and no file. What windows and chunks take is counted for each part as for a
whole model, which is a little more than it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from strata.engine.cells_room import KEYS_AND_VALUES, conversation_room
from strata.engine.checkpoint_budget import CHECKPOINTS
from strata.engine.device_needs import blobs_of, state_of
from strata.engine.memory_plan import MARKS, STATE, Budgets, Growth, PlanRequest
from strata.engine.parked_budget import PARKED
from strata.engine.reader_room import ring_room
from strata.experts.sources import expert_layers
from strata.models.device.layer_split import LayerSplit
from strata.models.device.sizes import state_sizes
from strata.models.device.split_weights import names_by_stage
from strata.models.needs import Part, StateBytes, part_of, sum_by_part
from strata.settings import EngineSettings

OF_STATE = (STATE, MARKS, KEYS_AND_VALUES)


@dataclass(frozen=True)
class Blobs:
    """The experts of one layer."""

    size: int  # bytes of one
    experts: int


@dataclass(frozen=True)
class ModelNeeds:
    """What parts are made of. config: the family's; tensor_bytes: canonical name -> bytes as a card holds them."""

    config: Any
    settings: EngineSettings
    tensor_bytes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    whole: PlanRequest  # of the model on one card

    @property
    def layers(self) -> int:
        """Of the model."""
        return int(self.config.num_layers)

    def requests(self, split: LayerSplit, budgets: Sequence[Budgets]) -> list[PlanRequest]:
        """Of all stages, in order."""
        return [
            replace(self.request(run, each), program=0 if number else self.whole.program)
            for number, (run, each) in enumerate(zip(split.runs, budgets, strict=True))
        ]

    def request(self, run: range, budgets: Budgets) -> PlanRequest:
        """Of a run of layers, with the embedding or the head if it is at that end."""
        names = dict.fromkeys(name for layer in run for name in self._names_by_layer[layer])
        sizes = {name: self.tensor_bytes[name] for name in names}
        routed = {name: self.shapes[name] for name in names if part_of(name) is Part.ROUTED}
        blobs, experts = blobs_of(sizes, routed), max((shape[0] for shape in routed.values()), default=0)
        return replace(
            self.whole,
            budgets=budgets,
            reserve=budgets.reserve,
            weights=sum_by_part(sizes),
            routed_weights=sum(map(math.prod, routed.values())),
            growing=self._growing(run),
            blobs=blobs,
            ring_bytes=ring_room(blobs, experts) if self.whole.chunk_rows else 0,
        )

    def blobs_by_layer(self) -> dict[int, Blobs]:
        """Of the layers that have experts, by their numbers, in order."""
        routed = {name: shape for name, shape in self.shapes.items() if part_of(name) is Part.ROUTED}
        found = {}
        for prefix in expert_layers(routed):
            own = {name: shape for name, shape in routed.items() if name.startswith(prefix)}
            ((size, experts),) = blobs_of(self.tensor_bytes, own)
            found[int(prefix.split(".")[2])] = Blobs(size, experts)
        return found

    def state(self, run: range | None = None) -> StateBytes:
        """Of a slot, of all layers or of some."""
        return state_of(state_sizes(self.config, run), self.whole.kv_kind)

    @cached_property
    def _names_by_layer(self) -> Sequence[list[str]]:
        """As if each was a stage."""
        return names_by_stage(LayerSplit(self.layers, tuple(range(1, self.layers))), self.shapes)

    def _growing(self, run: range) -> tuple[Growth, ...]:
        own, whole, context = self.state(run), self.state(), self.settings.context or self.whole.longest_context
        shares = {
            CHECKPOINTS: own.fixed / whole.fixed if whole.fixed else 0.0,
            PARKED: own.at(context) / whole.at(context),
        }
        rest = (each for each in self.whole.growing if each.name not in OF_STATE)
        return (
            *conversation_room(own, state_sizes(self.config, run), self.settings, context),
            *(scaled(each, shares.get(each.name, 1.0)) for each in rest),
        )


def scaled(growth: Growth, share: float) -> Growth:
    """So much of it."""
    return replace(growth, fixed=math.ceil(growth.fixed * share), per_slot=math.ceil(growth.per_slot * share))
