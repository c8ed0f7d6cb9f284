"""Hashed n-gram embedding added to the residual streams of some layers. Knows no family and no file.

Every order 2..ngram_size has its hash heads; a head hashes the last tokens into its own prime-sized part of one big
table. What the rows give gates a value per stream, and a dilated convolution adds local context.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from strata.models.blocks.causal_conv import convolve, tail_rows
from strata.models.blocks.linear import Weight, linear
from strata.models.blocks.norm import grouped_rms_norm

_MASK64 = (1 << 64) - 1
_MAX_INT64 = (1 << 63) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class NgramShape:
    """Sizes of one layer's n-gram embedding; `module_index` counts the layers that have one, from 0."""

    vocabulary_size: int
    ngram_size: int
    heads_per_ngram: int
    embed_dim: int  # all heads together
    table_size_base: int  # every head's part has a prime number of rows, at least this
    table_size_multiple: int  # the whole table is padded to a multiple of it
    seed: int
    end_of_text_id: int
    conv_kernel: int
    streams: int
    eps: float = 1e-6
    module_index: int = 0

    @property
    def heads(self) -> int:
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def history_rows(self) -> int:
        return self.ngram_size - 1

    @property
    def conv_tail_rows(self) -> int:
        return tail_rows(self.conv_kernel, self.ngram_size)

    @cached_property
    def head_sizes(self) -> tuple[int, ...]:
        """Rows of each head's part: consecutive primes from the base on, never shared between modules."""
        skipped = self.module_index * self.heads
        return primes_from(self.table_size_base, skipped + self.heads)[skipped:]

    @cached_property
    def table_rows(self) -> int:
        return -(-sum(self.head_sizes) // self.table_size_multiple) * self.table_size_multiple

    @cached_property
    def multipliers(self) -> tuple[int, ...]:
        """One odd hash multiplier per token of an n-gram, small enough that token * multiplier fits int64."""
        half_bound = max(1, _MAX_INT64 // self.vocabulary_size // 2)
        base = self.seed + 10007 * self.module_index
        return tuple(
            2 * (_splitmix64((base + _GOLDEN_GAMMA * (index + 1)) & _MASK64) % half_bound) + 1
            for index in range(self.ngram_size)
        )


@dataclass(frozen=True)
class NgramWeights:
    """The dense tensors beside the table."""

    key: Weight  # [streams * hidden, embed_dim]
    value: Weight  # [hidden, embed_dim]
    key_scale: torch.Tensor  # [streams * hidden]
    query_scale: torch.Tensor  # [streams * hidden]
    conv_scale: torch.Tensor  # [streams * hidden]
    conv: torch.Tensor  # [conv_kernel, streams * hidden], tap-major


def primes_from(start: int, count: int) -> tuple[int, ...]:
    """The first `count` primes >= start."""
    found: list[int] = []
    candidate = max(2, start)
    while len(found) < count:
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            found.append(candidate)
        candidate += 1
    return tuple(found)


def _splitmix64(value: int) -> int:
    """One output of the public-domain SplitMix64 generator for the state `value`."""
    value = (value + _GOLDEN_GAMMA) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def first_history(shape: NgramShape) -> torch.Tensor:
    """The history at the start of a text: end-of-text ids [ngram_size - 1]."""
    return torch.full((shape.history_rows,), shape.end_of_text_id, dtype=torch.int64)


def table_row_ids(tokens: torch.Tensor, shape: NgramShape) -> torch.Tensor:
    """Which table rows the tokens' n-grams hash to.

    tokens [ngram_size - 1 + rows]: the history, then the rows -> [rows, heads] int64. An n-gram never reaches back
    over an end-of-text: from the first one on (going back), every older token counts as end-of-text.
    """
    rows = tokens.shape[0] - shape.history_rows
    back = tokens[shape.history_rows :]
    mixed = back * shape.multipliers[0]
    end = torch.full_like(back, shape.end_of_text_id)
    is_over = torch.zeros_like(back, dtype=torch.bool)
    ids, offset = [], 0
    for reach in range(1, shape.ngram_size):
        start = shape.history_rows - reach
        back = torch.where(is_over, end, tokens[start : start + rows])
        is_over = is_over | (back == shape.end_of_text_id)
        mixed = mixed ^ (back * shape.multipliers[reach])
        first_head = (reach - 1) * shape.heads_per_ngram
        for size in shape.head_sizes[first_head : first_head + shape.heads_per_ngram]:
            ids.append(mixed % size + offset)
            offset += size
    return torch.stack(ids, dim=-1)


def ngram_values(
    streams: torch.Tensor, embeddings: torch.Tensor, weights: NgramWeights, shape: NgramShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated values of the rows and what the convolution reads.

    streams [rows, streams * hidden], embeddings [rows, embed_dim] -> both [rows, streams * hidden].
    """
    by_stream = (shape.streams, streams.shape[-1] // shape.streams)
    key = grouped_rms_norm(linear(embeddings, weights.key), weights.key_scale, shape.streams, shape.eps)
    query = grouped_rms_norm(streams, weights.query_scale, shape.streams, shape.eps)
    match = (key * query).unflatten(-1, by_stream).sum(dim=-1, keepdim=True) / by_stream[1] ** 0.5
    gate = match.abs().clamp_min(1e-6).sqrt() * match.sign()
    strength = (1.0 + torch.exp(-gate)).reciprocal()
    gated = (strength * linear(embeddings, weights.value).unsqueeze(-2)).flatten(-2)
    return gated, grouped_rms_norm(gated, weights.conv_scale, shape.streams, shape.eps)


def ngram_output(gated: torch.Tensor, extended: torch.Tensor, weights: NgramWeights, shape: NgramShape) -> torch.Tensor:
    """What is added to the streams. gated [..., rows, width], extended [..., conv tail + rows, width]."""
    return gated + convolve(extended, weights.conv, shape.ngram_size)
