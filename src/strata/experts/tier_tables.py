"""What a stage's windows look up and count up on their device, for all layers with experts.

Knows addresses and sums; knows not whose memory an address is of, nor who changes it. Nothing waits for the device.

Windows of several groups run side by side, and a window must not see an address change while it looks: its programs
would disagree on who is missing. So each group has addresses of its own, which change between its own windows. What is
counted up is one for all, by atomic additions; the share is one for all, because a layer's plan reads one word of it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from strata.experts.address_changes import AddressChanges
from strata.kernels.expert_plan.tables import LayerTables

TOTALS = 3  # distinct experts from seats, in place, on the CPU


@dataclass(frozen=True)
class Totals:
    """Distinct experts of every layer of every window so far, by where they were computed."""

    seats: int
    in_place: int
    on_cpu: int


class TierTables:
    """Tensors [layers, experts] on the device, a row for each layer. Addresses change by `flush`, before a launch."""

    def __init__(
        self,
        resident: NDArray[np.int64],
        in_place: NDArray[np.int64],
        most_misses: int,
        device: torch.device,
        groups: int = 1,
    ) -> None:
        """Addresses [layers, experts], 0 for none. most_misses: of one layer of one window; none is read in place."""
        layers, is_gpu = len(resident), device.type == "cuda"
        self.asked = torch.zeros(resident.shape, dtype=torch.int32, device=device)
        places = np.stack([np.stack((resident, in_place))] * groups)
        self._places = torch.from_numpy(places).to(device)  # [groups, 2, layers, experts]
        self._changes = [AddressChanges(of_group) for of_group in self._places]
        self._share = torch.zeros(most_misses + 1, dtype=torch.int32, device=device)
        self._share_room = torch.zeros(most_misses + 1, dtype=torch.int32, pin_memory=is_gpu)
        self._totals = torch.zeros(layers, TOTALS, dtype=torch.int32, device=device)
        self._totals_room = torch.zeros(layers, TOTALS, dtype=torch.int32, pin_memory=is_gpu)
        self._last_totals = np.zeros((layers, TOTALS), np.uint32)
        self._sums = np.zeros(TOTALS, np.int64)

    def layers(self, group: int = 0) -> list[LayerTables]:
        """Views, for windows of one group."""
        rows = zip(*self._places[group], self.asked, self._totals, strict=True)
        return [
            LayerTables(resident, in_place, self._share, asked, totals) for resident, in_place, asked, totals in rows
        ]

    def set_resident(self, layer: int, expert: int, address: int) -> None:
        """From each group's next `flush` on this seat holds the expert, 0: none does."""
        self._set(self._entry(0, layer, expert), address)

    def set_in_place(self, layer: int, expert: int, address: int) -> None:
        """From each group's next `flush` on the device can read the expert here, 0: it cannot."""
        self._set(self._entry(1, layer, expert), address)

    def flush(self, group: int = 0) -> None:
        """Addresses that were set are there for what the group launches behind this call on the current stream."""
        self._changes[group].flush()

    def set_share(self, table: torch.Tensor) -> None:
        """table int32 [most misses + 1] in main memory: how many of n distinct misses the device reads in place.

        Raises ValueError for another size, or a number that is not 0 to n.
        """
        most = self._share.numel() - 1
        if table.shape != self._share.shape or bool((table < 0).any() | (table > torch.arange(most + 1)).any()):
            raise ValueError(f"a share must be int32 [{most + 1}] with 0 to n for n misses, not {table.tolist()}")
        self._share.copy_(self._share_room.copy_(table), non_blocking=True)

    def totals(self) -> Totals:
        """So far; of a GPU as it told them since the call before this one. The counters wrap, the sums do not."""
        self._totals_room.copy_(self._totals, non_blocking=True)
        now = self._totals_room.numpy().view(np.uint32).copy()
        self._sums += (now - self._last_totals).astype(np.int64).sum(axis=0)
        self._last_totals = now
        return Totals(*self._sums.tolist())

    def _set(self, entry: int, address: int) -> None:
        for changes in self._changes:
            changes.set(entry, address)

    def _entry(self, table: int, layer: int, expert: int) -> int:
        _, _, layers, experts = self._places.shape
        if not (0 <= layer < layers and 0 <= expert < experts):
            raise IndexError(f"expert {expert} of layer {layer}: there are {layers} layers of {experts} experts")
        return (table * layers + layer) * experts + expert
