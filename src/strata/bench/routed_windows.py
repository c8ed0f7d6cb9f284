"""Which experts windows of a stage took, layer by layer: how many different ones, and how many of all the hottest got.

Knows counts; which windows were recorded is decided elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from strata.engine.stage import Stage, Variant
from strata.kernels.router import Routes
from strata.models.device.description import SparseMlp
from strata.models.device.launches import Launch


@dataclass(frozen=True)
class RoutedWindows:
    """How many rows of each window took each expert: integers [windows, layers with experts, experts]."""

    counts: NDArray[np.int32]

    @classmethod
    def of_choices(cls, ids: NDArray[np.integer], experts: int) -> "RoutedWindows":
        """ids [windows, layers, rows, ranks], all of them experts."""
        windows, layers = ids.shape[:2]
        cells = ids.reshape(windows * layers, -1) + experts * np.arange(windows * layers)[:, None]
        counts = np.bincount(cells.ravel(), minlength=windows * layers * experts)
        return cls(counts.astype(np.int32).reshape(windows, layers, experts))

    @classmethod
    def joined(cls, parts: Sequence["RoutedWindows"]) -> "RoutedWindows":
        """Windows of several recordings."""
        return cls(np.concatenate([part.counts for part in parts]))

    @property
    def experts(self) -> int:
        """Of a layer."""
        return self.counts.shape[-1]

    @property
    def choices(self) -> float:
        """Of a layer of a window: rows times ranks."""
        return float(self.counts.sum(axis=-1).mean())

    @property
    def distinct(self) -> tuple[float, ...]:
        """Different experts of a window, by layer, on average."""
        return tuple(float(each) for each in (self.counts > 0).sum(axis=-1).mean(axis=0))

    def share_of_hottest(self, percent: float) -> float:
        """The share of all choices that the hottest `percent` of a layer's experts get.

        Which they are is told by every other window, what they get is judged by the rest: where all experts are alike
        that is the percentage itself, however few windows there are, and with few it is too little elsewhere. One
        window at least must be on either side.
        """
        told, judged = self.counts[::2].sum(axis=0), self.counts[1::2].sum(axis=0)
        hottest = np.argsort(-told, axis=-1, kind="stable")[:, : round(percent / 100 * told.shape[-1])]
        return float(np.take_along_axis(judged, hottest, axis=-1).sum() / judged.sum())


def record_window(stage: Stage, variant: Variant, bucket: int, rows: int) -> torch.Tensor:
    """Run a window op by op and return what its first rows took: ids [layers with experts, rows, ranks] on the device.

    All layers leave their routes in the same buffers, so they are copied between the launches.
    """
    taken = []
    for launch in stage.launches(variant, bucket):
        launch.run()
        routes = _routes_of(launch)
        if routes is not None:
            taken.append(routes.ids[:rows].clone())
    return torch.stack(taken)


def experts_of_a_layer(stage: Stage) -> int:
    """Routed experts. Raises ValueError for a model without."""
    counts = {layer.mlp.router.shape[0] for layer in stage.model.layers if isinstance(layer.mlp, SparseMlp)}
    if len(counts) != 1:
        raise ValueError(f"layers with {sorted(counts)} experts: their windows cannot be counted together")
    return counts.pop()


def _routes_of(launch: Launch) -> Routes | None:
    """Where a launch that routes leaves its choices."""
    if launch.step not in ("experts: route", "experts: route, plan"):
        return None
    assert isinstance(launch.run, partial)
    return next(argument for argument in launch.run.args if isinstance(argument, Routes))
