"""The experts of a made-up model in main memory, made once, and caches of any size over them.

Knows where bytes lie; knows no window. The same main memory serves one cache after another.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from strata.experts.cache import ExpertId
from strata.experts.host_memory import HostMemory, Pinning, take_host_memory
from strata.experts.store import ExpertStore
from strata.experts.store_plan import StoreLayer, StorePlan, place_pieces, seat_pieces
from strata.experts.tiers import ExpertTiers
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.models.device.description import DeviceModel, SparseMlp
from strata.types import ProgressCallback


@dataclass(frozen=True)
class TierMemory:
    """All experts, layer after layer in pieces of main memory; pinned where a card is."""

    layers: tuple[StoreLayer, ...]
    experts: int  # of a layer
    device: torch.device
    host: HostMemory

    @classmethod
    def take(
        cls,
        layers: tuple[StoreLayer, ...],
        experts: int,
        device: torch.device,
        threads: int,
        on_progress: ProgressCallback | None = None,
    ) -> "TierMemory":
        """Memory without experts in it. Raises ModelError if there is not so much."""
        sizes = [size * count for size, count in place_pieces(_plan(layers, np.zeros((len(layers), experts), bool)))]
        pinning = Pinning.cuda() if device.type == "cuda" else None
        return cls(layers, experts, device, take_host_memory(sizes, threads, pinning, on_progress))

    def put(self, prefix: str, blobs: torch.Tensor) -> None:
        """Write a layer's blobs, uint8 [experts, bytes] on the device, to where they belong."""
        self.blobs(next(index for index, layer in enumerate(self.layers) if layer.name == prefix)).copy_(blobs)

    def blobs(self, layer: int) -> torch.Tensor:
        """A layer's experts in main memory, uint8 [experts, bytes]: a view."""
        return self.host.pieces[layer].view(self.experts, -1)

    def store(self, has_seat: NDArray[np.bool_]) -> ExpertStore:
        """A cache with seats for these experts [layers, experts], filled."""
        plan = _plan(self.layers, has_seat)
        seats = [torch.empty(size * count, dtype=torch.uint8, device=self.device) for size, count in seat_pieces(plan)]
        store = ExpertStore(plan, seats, lambda sizes: self.host)
        for layer, expert in np.argwhere(has_seat).tolist():
            seat = store.seat(ExpertId(layer, expert))
            assert seat is not None
            seat.copy_(self.blobs(layer)[expert], non_blocking=True)
        return store

    def on_device(self) -> list[torch.Tensor]:
        """All experts on the device, a layer after another: as a model lies there that needs no tiers."""
        return [self.host.pieces[layer].to(self.device, copy=True) for layer in range(len(self.layers))]


def model_in_tiers(model: DeviceModel, tiers: ExpertTiers, memory: TierMemory) -> DeviceModel:
    """The model with its experts where the tiers say."""

    def place(mlp: SparseMlp, layer: int) -> SparseMlp:
        return replace(mlp, blobs=replace(mlp.blobs, memory=memory.host.pieces[layer]), tiers=tiers.layer(layer))

    return replace(_with_experts(model, place), tiers=tiers)


def model_on_device(model: DeviceModel, blobs: list[torch.Tensor]) -> DeviceModel:
    """The model with all experts of each layer in one run of the device's memory, as it runs without tiers."""

    def place(mlp: SparseMlp, layer: int) -> SparseMlp:
        return replace(mlp, blobs=ExpertBlobs(mlp.blobs.layout, blobs[layer]), tiers=None)

    return replace(_with_experts(model, place), tiers=None)


def seats_of(heat: NDArray[np.integer], percent: float) -> NDArray[np.bool_]:
    """Who has a seat [layers, experts]: in each layer so many percent of the experts, the hottest of them."""
    count = round(percent / 100 * heat.shape[1])
    has_seat = np.zeros(heat.shape, bool)
    np.put_along_axis(has_seat, np.argsort(-heat, axis=1, kind="stable")[:, :count], True, axis=1)
    return has_seat


def _with_experts(model: DeviceModel, place: Callable[[SparseMlp, int], SparseMlp]) -> DeviceModel:
    layers, index = [], 0
    for layer in model.layers:
        if isinstance(layer.mlp, SparseMlp):
            layer, index = replace(layer, mlp=place(layer.mlp, index)), index + 1
        layers.append(layer)
    return replace(model, layers=tuple(layers))


def _plan(layers: tuple[StoreLayer, ...], has_seat: NDArray[np.bool_]) -> StorePlan:
    """Raises ValueError for layers whose blobs differ in size: pieces would not be layers."""
    if len({layer.layout.total_bytes for layer in layers}) != 1:
        raise ValueError("layers of blobs of different sizes are not measured")
    return StorePlan(layers, has_seat)
