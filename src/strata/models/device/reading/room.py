"""The memory of chunks: pieces by name, each as large as the largest thing that it ever holds, made once.

Parts of a layer that are never alive together share a name. Knows names and sizes; knows no part of a layer.
"""

import math
from dataclasses import dataclass, field

import torch

_ALIGNMENT = 256
_MOST_VIEWS = 1024  # that are kept: those of a few lengths of chunks


@dataclass
class ReadRoom:
    """Gives the beginnings of named pieces as tensors of any shape and type, the same tensor for the same wish.

    Before `make` the tensors have no memory: what is asked for is added up.
    """

    device: torch.device
    sizes: dict[str, int] = field(default_factory=dict)  # bytes
    _held: dict[str, torch.Tensor] = field(default_factory=dict)
    _views: dict[tuple[str, torch.dtype, tuple[int, ...]], torch.Tensor] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Of all pieces."""
        return sum(self.sizes.values())

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The beginning of the piece `name`, contiguous in this shape. Raises ValueError if the piece is smaller."""
        known = self._views.get((name, dtype, shape))
        if known is not None:
            return known
        size = math.prod(shape) * dtype.itemsize
        if not self._held:
            self.sizes[name] = max(self.sizes.get(name, 0), -(-size // _ALIGNMENT) * _ALIGNMENT)
            return torch.empty(shape, dtype=dtype, device="meta")
        if size > self.sizes.get(name, 0):
            raise ValueError(
                f"the piece {name} has {self.sizes.get(name, 0)} bytes, {list(shape)} of {dtype} take {size}"
            )
        if len(self._views) == _MOST_VIEWS:
            self._views.clear()
        found = self._views[name, dtype, shape] = self._held[name][:size].view(dtype).view(shape)
        return found

    def make(self) -> None:
        """Take the memory, all of it zeros. Raises torch's error if there is none."""
        self._held = {
            name: torch.zeros(size, dtype=torch.uint8, device=self.device) for name, size in self.sizes.items()
        }
