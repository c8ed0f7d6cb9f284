"""A model directory whose matrices are quantized while they are read: `--quantize`, for people who have bf16 or FP8.

Knows which tensors are quantized; what they become is quant's. Everybody who reads a tensor gets the values that the
packed matrix holds, so reads and windows compute with one model.
"""

import torch

from strata.quant.at_load import CHOICES, quantize_matrix
from strata.quant.packed import PackedMatrix
from strata.weights.names import is_fp8_matrix
from strata.weights.safetensors import SafetensorsSource

_HEAD = "lm_head.weight"
_HEAD_CHOICE = "code8"  # four bits in the head cost more than in any other matrix


class QuantizingSource(SafetensorsSource):
    """A SafetensorsSource whose matrices are those of `choice`: code4 or code8."""

    def __init__(self, source: SafetensorsSource, choice: str) -> None:
        super().__init__(source.directory, source.config, source._layout)
        self.choice = choice

    @property
    def notices(self) -> tuple[str, ...]:
        bits = CHOICES[self.choice].bits_per_weight
        return (*super().notices, f"matrices are quantized to {bits:g} bits a weight while they are read")

    def choice_of(self, name: str) -> str | None:
        """What a tensor becomes; None if it stays as it is stored: norms, routers, convolutions, tables, embeddings."""
        if name == _HEAD:
            return _HEAD_CHOICE
        return self.choice if is_fp8_matrix(name) else None

    def stored_code(self, name: str) -> str:
        return self.choice_of(name) or super().stored_code(name)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        choice = self.choice_of(name)
        if choice is None:
            return super().tensor(name, dtype)
        values = super().tensor(name, torch.float32)
        out = values if dtype == torch.float32 else torch.empty(values.shape, dtype=dtype)
        size = values.shape[-2:]
        for matrix, target in zip(values.view(-1, *size), out.view(-1, *size), strict=True):
            target.copy_(quantize_matrix(matrix, choice).decode())
        return out

    def packed(self, name: str) -> PackedMatrix | None:
        """A quantized matrix as it is packed; None for what is not quantized and for experts."""
        choice = self.choice_of(name)
        if choice is None or len(self.shape(name)) != 2:
            return None
        return quantize_matrix(super().tensor(name, torch.float32), choice)
