"""Tiny models over stages beside each other, a group of slots each, with experts in tiers or without. No test.

On CPU tensors, over the torch road, unless the description is of a card.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strata.engine.device_windows import windows_ahead
from strata.engine.engine import TokenEngine
from strata.engine.graphs import WindowGraphs
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_model import GroupStage, StageModel
from strata.experts.cache import SwapRule
from strata.experts.store import ExpertStore
from strata.experts.streams import streams_of
from strata.experts.swapping import Swapper
from strata.models.device.description import DeviceModel
from tests.engine.served import SETTINGS, Served

EAGER = SwapRule(every=1, most_swaps=8, margin=0.1, decay=0.7, again=1.0)  # seats change with every window
CONTEXT = 256


def grouped_model(
    model: Any, description: DeviceModel, groups: int, slots: int, buckets: tuple[int, ...] | None = None
) -> StageModel:
    """The built model over a stage a group, with empty slots."""
    first, made = None, []
    for group in range(groups):
        stage = Stage(description.for_group(group), StageSizes(slots, CONTEXT), buckets, beside=first)
        made.append(GroupStage(stage, WindowGraphs(stage).run))
        first = first or stage
    return StageModel(made[0].stage, made[0].run, model.config, model.experts_per_row, other_groups=made[1:])


def grouped_served(
    model: Any,
    description: DeviceModel,
    groups: int,
    slots: int,
    *,
    is_ahead: bool = True,
    buckets: tuple[int, ...] | None = None,
) -> Served:
    """A scheduler and an engine over it."""
    made = grouped_model(model, description, groups, slots, buckets)
    engine = TokenEngine(made, SETTINGS, ahead=windows_ahead(made) if is_ahead else ())
    return Served(engine, slots, groups if is_ahead else 1)


@contextmanager
def swapping_beside(served: Served, description: DeviceModel, store: ExpertStore) -> Iterator[Swapper]:
    """Seats follow the windows of all groups inside, eagerly."""
    model, tiers = served.engine.model, description.tiers
    assert isinstance(model, StageModel) and tiers is not None
    device = description.device
    streams = streams_of(device, model.roads.beside_main(device))
    swapper = Swapper(store, tiers, tiers.asked, streams, EAGER)
    tiers.follow(swapper.before_launch, swapper.note_prompt)
    try:
        yield swapper
    finally:
        swapper.close()
