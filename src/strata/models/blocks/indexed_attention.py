"""Attention over the cells that a small indexer picks: the best complete blocks of keys and the open tail.

Knows no family and no slot. A row at position p sees `complete = (p + 1) // ratio` blocks; with at most `top_blocks` of
them it sees everything and plain causal attention gives the same result, otherwise its cells are gathered.
"""

from dataclasses import dataclass

import torch

from strata.errors import EngineError
from strata.models.blocks.attention import Heads
from strata.models.blocks.linear import Weight, linear
from strata.models.blocks.norm import rms_norm
from strata.models.blocks.rotary import Rotation, apply_rotary, rotation_at
from strata.models.blocks.rows import pad_rows

BLOCK_SPLIT = 512  # blocks are scored in whole runs of 512, so that the product's shape hardly ever changes
GATHER_BYTES = 32 << 20  # keys gathered at a time


@dataclass(frozen=True)
class IndexerShape:
    """Sizes of an indexer."""

    heads: int
    head_dim: int
    budget: int  # cells taken from complete blocks, a multiple of `ratio`
    ratio: int  # cells a block
    eps: float = 1e-6

    @property
    def top_blocks(self) -> int:
        return self.budget // self.ratio

    @property
    def dense_positions(self) -> int:
        """Rows before this position see every cell."""
        return self.budget + self.ratio - 1


@dataclass(frozen=True)
class IndexerWeights:
    """`query_key` is index_qk_proj: the query heads' rows, then one key head's."""

    query_key: Weight  # [(heads + 1) * head_dim, hidden]
    query_scale: torch.Tensor  # [head_dim]
    key_scale: torch.Tensor  # [head_dim]


def index_rows(
    x: torch.Tensor, weights: IndexerWeights, shape: IndexerShape, rotation: Rotation
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, hidden] -> (queries [rows, heads, head_dim] normed and rotated, raw keys [rows, head_dim])."""
    mixed = linear(x, weights.query_key)
    query, raw_key = mixed.split((shape.heads * shape.head_dim, shape.head_dim), dim=-1)
    query = rms_norm(query.unflatten(-1, (shape.heads, shape.head_dim)), weights.query_scale, shape.eps)
    return apply_rotary(query, rotation), raw_key


def pool_blocks(
    raw_keys: torch.Tensor, first_block: int, weights: IndexerWeights, shape: IndexerShape, frequencies: torch.Tensor
) -> torch.Tensor:
    """Keys of complete blocks: the mean of their raw keys, normed, rotated to the block's first position.

    raw_keys [blocks * ratio, head_dim] of the blocks from `first_block` on -> [blocks, head_dim].
    """
    pooled = raw_keys.unflatten(0, (-1, shape.ratio)).mean(dim=1)
    normed = rms_norm(pooled, weights.key_scale, shape.eps)
    blocks = torch.arange(first_block, first_block + normed.shape[0], device=normed.device)
    rotation = rotation_at(blocks * shape.ratio, frequencies, normed.dtype)
    return apply_rotary(normed.unsqueeze(1), rotation).squeeze(1)


def score_blocks(
    query: torch.Tensor, block_keys: torch.Tensor, complete: torch.Tensor, shape: IndexerShape
) -> torch.Tensor:
    """Scores >= 0 of the complete blocks of each row, -1 for the others.

    query [rows, heads, head_dim]; block_keys [blocks, head_dim]; complete [rows] -> [rows, blocks].
    """
    rows = query.shape[0]
    padded = pad_rows(query)
    products = torch.matmul(padded.flatten(0, 1), block_keys.t()).unflatten(0, (padded.shape[0], shape.heads))[:rows]
    scores = torch.relu(products).sum(dim=1) / shape.head_dim**0.5
    block_ids = torch.arange(block_keys.shape[0], device=query.device)
    return scores.masked_fill(block_ids >= complete.unsqueeze(-1), -1.0)


def choose_blocks(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` best blocks of each row in rising order, the lower index first among equal scores.

    torch.topk leaves open which of two equal scores it takes, so it is only asked for the threshold.
    scores [rows, blocks] with blocks >= count -> [rows, count] int64. Raises EngineError if scores are NaN.
    """
    threshold = torch.topk(scores, count, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    is_above = scores > threshold
    is_tied = scores == threshold
    room = count - is_above.sum(dim=-1, keepdim=True)
    is_chosen = is_above | (is_tied & (is_tied.cumsum(dim=-1) <= room))
    chosen = is_chosen.nonzero()[:, 1]
    if chosen.shape[0] != scores.shape[0] * count:
        raise EngineError("the indexer's scores are not finite (NaN): broken weights or a broken state")
    return chosen.view(scores.shape[0], count)


def select_cells(
    query: torch.Tensor, block_keys: torch.Tensor, positions: torch.Tensor, shape: IndexerShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cells of rows that have more complete blocks than they may take.

    query [rows, heads, head_dim]; block_keys [blocks, head_dim]; positions [rows].
    Returns (cells [rows, budget + ratio - 1] in rising order, is_visible of the same shape: tails may be shorter).
    """
    complete = (positions + 1) // shape.ratio
    blocks = choose_blocks(score_blocks(query, block_keys, complete, shape), shape.top_blocks)
    within = torch.arange(shape.ratio, device=query.device)
    block_cells = (blocks.unsqueeze(-1) * shape.ratio + within).flatten(1)
    tail_cells = complete.unsqueeze(-1) * shape.ratio + within[:-1]
    cells = torch.cat((block_cells, tail_cells), dim=1)
    is_visible = cells <= positions.unsqueeze(-1)
    return torch.minimum(cells, positions.unsqueeze(-1)), is_visible


def attend_cells(
    query: torch.Tensor, keys: Heads, values: Heads, cells: torch.Tensor, is_visible: torch.Tensor
) -> torch.Tensor:
    """Attention of each row over its own cells.

    query [rows, query_heads, head_dim]; keys, values [cells, kv_heads, head_dim]; cells, is_visible [rows, n].
    Returns [rows, query_heads * head_dim]. Rows are taken a few at a time: memory stays below `GATHER_BYTES` a tensor.
    """
    kv_heads, head_dim = keys.shape[1:]
    row_bytes = cells.shape[1] * kv_heads * head_dim * query.element_size()
    step = max(1, GATHER_BYTES // row_bytes)
    grouped = (query * head_dim**-0.5).unflatten(1, (kv_heads, -1))  # [rows, kv_heads, group, head_dim]
    parts = []
    for start in range(0, query.shape[0], step):
        part = slice(start, start + step)
        # contiguous [rows, kv_heads, n, head_dim]: one row and many reach the product with the same strides
        gathered_keys, gathered_values = (
            heads[cells[part]].to(query.dtype).transpose(1, 2).contiguous() for heads in (keys, values)
        )
        scores = torch.matmul(grouped[part], gathered_keys.transpose(-1, -2))
        scores = scores.masked_fill(~is_visible[part, None, None, :], float("-inf"))
        parts.append(torch.matmul(torch.softmax(scores, dim=-1), gathered_values).flatten(1))
    return torch.cat(parts) if len(parts) > 1 else parts[0]
