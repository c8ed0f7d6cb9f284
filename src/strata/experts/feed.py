"""Who gives a layer's experts to the rows of a prompt, batch by batch: the contract, and experts that are all there.

Knows addresses and when they hold; knows no row. `experts/streaming.py` gives those that have no seat.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class ExpertBatch:
    """Experts of one layer that lie in the card's memory together. Tensors are on the computing device."""

    addresses: torch.Tensor  # int64 [experts]: of the chosen ones; others may hold anything
    chosen: torch.Tensor  # int32 [batch]: their numbers, rising
    sent_bytes: int = 0  # of those on their way; 0: they are there


@dataclass(frozen=True)
class Copying:
    """How far experts are on their way, in seconds, about."""

    arrivals: tuple[float, ...] = ()  # until each batch is there that is on its way and was not held: 0, it is there
    for_a_byte: float = 0.0


class ExpertFeed(Protocol):
    """Gives a layer's experts batch by batch to whoever computes the rows of one chunk, layer after layer."""

    @property
    def asks_for_routing(self) -> bool:
        """Whether `batches` must be told which experts the rows need, so that the others are not sent."""
        ...

    def begin(self, places: int, layer: int = 0) -> None:
        """A chunk of so many places (rows * ranks) begins, or goes on with this layer; `end` follows in any case.

        What is sent to one that goes on comes behind what was launched so far: its streams, which are needed first.
        """
        ...

    def batches(self, layer: int, needed: Collection[int] | None) -> Sequence[ExpertBatch]:
        """The experts of a layer, counted among those that have experts. Layers come in order. needed: None for all.

        What reads a batch on its way is launched between `hold` and `let_go` of it, batch after batch.
        """
        ...

    def hold(self) -> None:
        """What is launched from now on starts when the next batch on its way is there."""
        ...

    def let_go(self) -> None:
        """What is launched from now on does not read that batch: the next ones may be sent."""
        ...

    def end(self) -> None:
        """The chunk is through, or is given up; what was launched for it may still run."""
        ...

    def pause(self) -> None:
        """The chunk is set aside between two layers: another one may begin; it goes on with `begin`."""
        ...

    @property
    def copying(self) -> Copying:
        """How far experts are on their way."""
        ...

    @property
    def at_hand(self) -> int:
        """Experts that were given so far without being sent, each once for every layer of every chunk."""
        ...

    @property
    def sent(self) -> int:
        """Experts that were sent so far."""
        ...


class ExpertsAtHand:
    """See `ExpertFeed`: whatever the batches are, they are there for ever."""

    asks_for_routing = False
    copying = Copying()
    at_hand = sent = 0

    def begin(self, places: int, layer: int = 0) -> None:
        """See `ExpertFeed`."""

    def hold(self) -> None:
        """See `ExpertFeed`."""

    def let_go(self) -> None:
        """See `ExpertFeed`."""

    def end(self) -> None:
        """See `ExpertFeed`."""

    def pause(self) -> None:
        """See `ExpertFeed`."""


class ResidentExperts(ExpertsAtHand):
    """See `ExpertFeed`: every expert has its place in the card's memory for ever."""

    def __init__(self, addresses: Sequence[torch.Tensor]) -> None:
        """addresses: int64 [experts] on the computing device, for each layer with experts."""
        self._batches = [
            ExpertBatch(each, torch.arange(each.numel(), dtype=torch.int32, device=each.device)) for each in addresses
        ]

    def batches(self, layer: int, needed: Collection[int] | None) -> Sequence[ExpertBatch]:
        """See `ExpertFeed`."""
        self.at_hand += self._batches[layer].chosen.numel()
        return [self._batches[layer]]
