"""Who follows the windows of a model's stages: seats and shares of each by itself, and one profile of all at the end.

Knows stages and the rows of a profile that are theirs; how one stage is followed is in `tier_following.py`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from strata.engine.local_stage import on_device
from strata.engine.stage_loading import LoadedStage
from strata.engine.tier_following import end_behind, follow_windows
from strata.settings import EngineSettings

TakeHeat = Callable[[NDArray[np.float64]], None]  # of [layers with experts of the model, experts]


def follow_stages(loaded: LoadedStage, settings: EngineSettings, take_heat: TakeHeat) -> None:
    """From now on every stage with experts in tiers follows what its windows ask for; at the end the heat is told once.

    Raises EngineError if a card has no memory left to measure with.
    """
    sparse = [part.description.sparse_layers for part in loaded.parts]
    tiered = [number for number, part in enumerate(loaded.parts) if part.tiers is not None]
    gathered = _GatheredHeat(sparse, len(tiered), take_heat)
    roads = loaded.model.roads
    for number in tiered:
        part, stage = loaded.parts[number], loaded.model.stage.stages[number]
        assert part.tiers is not None
        with on_device(stage.device):
            swapper = follow_windows(part.tiers, stage, settings, roads.beside_main(stage.device))
        end_behind(loaded.model, part.tiers, swapper, gathered.taker(number))


class _GatheredHeat:
    """Rows of several stages, which come one after another when a model ends; nothing is known of one without tiers."""

    def __init__(self, layers: list[int], stages: int, take_heat: TakeHeat) -> None:
        self._layers, self._missing, self._take = layers, stages, take_heat
        self._found: dict[int, NDArray[np.float64]] = {}

    def taker(self, number: int) -> TakeHeat:
        """What takes one stage's."""

        def take(heat: NDArray[np.float64]) -> None:
            self._found[number] = heat
            if len(self._found) == self._missing:
                self._take(self._whole(heat.shape[1]))

        return take

    def _whole(self, experts: int) -> NDArray[np.float64]:
        nothing = ((number, np.zeros((layers, experts))) for number, layers in enumerate(self._layers))
        return np.concatenate([self._found.get(number, zeros) for number, zeros in nothing])
