"""The profile of a model's experts at a start and at an end: who gets seats first, and what this run adds to it.

Knows where a profile is kept and when it is written; the file is `experts/routing_profile.py`'s matter.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strata.experts.routing_profile import (
    LoadedProfile,
    ProfiledModel,
    add_to_profile,
    load_profile,
    model_digest,
    profile_path,
)
from strata.experts.sources import expert_layers
from strata.models.fast.packing import experts_of
from strata.weights.opening import ModelSource

_log = logging.getLogger("strata.experts")


@dataclass(frozen=True)
class OpenProfile:
    """A model's profile as it was found, and where the next one goes."""

    path: Path
    model: ProfiledModel
    found: LoadedProfile

    @property
    def heat(self) -> NDArray[np.float32] | None:
        """How often each expert was asked for, [layers, experts]; None: nothing is known."""
        return self.found.heat

    def save(self, heat: NDArray[np.float64]) -> None:
        """Add what a run asked for to what the file holds by now; nothing if it asked for nothing.

        What goes wrong is logged.
        """
        if heat.any():
            problem = add_to_profile(self.path, self.model, heat)
            if problem is not None:
                _log.warning("%s", problem)


def open_profile(source: ModelSource, names: Collection[str], file: str | None, folder: Path) -> OpenProfile:
    """The profile in `file`, or the model's own in `folder`; there may be none yet. Reads no weight."""
    experts = experts_of(source, expert_layers(names))
    layers = experts.layers()
    digest = model_digest(source.config, {name: tuple(source.shape(name)) for name in names})
    model = ProfiledModel(source.directory.name, len(layers), experts.count(layers[0]), digest)
    path = profile_path(folder, model) if file is None else Path(file)
    return OpenProfile(path, model, load_profile(path, model))
