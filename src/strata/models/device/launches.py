"""A model's windows as lists of launches over buffers that never move. Knows no op and no family."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Launch:
    """One step of a window: `run` launches an op over buffers that stay; it allocates nothing and waits for nothing."""

    layer: int | None  # None: outside the layers
    kind: str  # of the layer: delta, attention or window
    step: str  # in words, such as "delta rows": what a profile calls it
    run: Callable[[], None]


Program = Sequence[Launch]


@dataclass
class Workspace:
    """Buffers by name, shared by layers and buckets: each is made once, by whoever asks first, and viewed from then on.

    The first caller must want the most, so programs are built from the largest bucket down.
    """

    device: torch.device
    held: dict[str, torch.Tensor] = field(default_factory=dict)

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The beginning of the buffer `name`, contiguous in this shape. Raises ValueError if the buffer is smaller."""
        count = math.prod(shape)
        if name not in self.held:
            self.held[name] = torch.zeros(count, dtype=dtype, device=self.device)
        whole = self.held[name]
        if count > whole.numel() or dtype != whole.dtype:
            raise ValueError(
                f"buffer {name} holds {whole.numel()} of {whole.dtype}; {list(shape)} of {dtype} do not go into it"
            )
        return whole[:count].view(shape)
