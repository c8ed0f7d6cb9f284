"""Hashed n-gram ids of whole sequences on the training device.

Knows the published hash (multipliers by splitmix64, consecutive primes as head sizes); knows no table.
"""

import math

import torch
from torch import Tensor

from training.recipe import PocketShape

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def splitmix64(value: int) -> int:
    value = (value + GAMMA) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def is_prime(value: int) -> bool:
    return value > 1 and all(value % divisor for divisor in range(2, math.isqrt(value) + 1))


class NgramHash:
    """Sizes and multipliers of a model whose first n-gram layer this is."""

    def __init__(self, shape: PocketShape) -> None:
        self.shape = shape
        half = max(1, ((1 << 63) - 1) // shape.vocabulary_size // 2)
        seeds = [(shape.ngram_seed + GAMMA * (i + 1)) & MASK for i in range(shape.ngram_size)]
        self.multipliers = torch.tensor([2 * (splitmix64(seed) % half) + 1 for seed in seeds])
        sizes: list[int] = []
        candidate = shape.ngram_base
        while len(sizes) < shape.ngram_heads:
            if is_prime(candidate):
                sizes.append(candidate)
            candidate += 1
        self.sizes = torch.tensor(sizes)
        self.offsets = self.sizes.cumsum(0) - self.sizes
        self.padded_rows = math.ceil(sum(sizes) / shape.ngram_divisor) * shape.ngram_divisor

    def to(self, device: torch.device) -> None:
        self.multipliers, self.sizes, self.offsets = (
            x.to(device) for x in (self.multipliers, self.sizes, self.offsets)
        )

    def ids(self, tokens: Tensor) -> Tensor:
        """tokens [sequences, length] int64 -> table rows [sequences, length, heads]; histories stop at end-of-text."""
        shape = self.shape
        ended = tokens == shape.end_of_text
        mixed = tokens * self.multipliers[0]
        previous = tokens
        cut = torch.zeros_like(ended)
        ids = []
        for order in range(2, shape.ngram_size + 1):
            previous = torch.nn.functional.pad(previous, (1, 0), value=shape.end_of_text)[:, :-1]
            ended = torch.nn.functional.pad(ended, (1, 0), value=True)[:, :-1]
            cut = cut | ended
            previous = previous.masked_fill(cut, shape.end_of_text)
            mixed = mixed ^ (previous * self.multipliers[order - 1])
            heads = slice((order - 2) * shape.heads_per_ngram, (order - 1) * shape.heads_per_ngram)
            ids.append(mixed.unsqueeze(-1) % self.sizes[heads] + self.offsets[heads])
        return torch.cat(ids, -1)
