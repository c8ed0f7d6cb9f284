"""What the indexer chooses and what it learns from: block scores, the sparse mask, the loss on attention's own mass.

Knows queries, keys and block keys of flat rows; knows no layer.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.recipe import PocketShape


@dataclass(frozen=True)
class IndexerTargets:
    """Which rows train the indexer: queries `first` .. `first + count` of the first `sequences` sequences."""

    sequences: int
    first: int
    count: int


def block_scores(index_query: Tensor, blocks: Tensor, first: int, count: int) -> Tensor:
    """Scores of every block for `count` queries from `first`.

    index_query [sequences, length, heads, width], blocks [sequences, length / ratio, width]
    -> [sequences, count, blocks].
    """
    queries = index_query[:, first : first + count]
    dots = torch.einsum("sqhw,sbw->sqhb", queries.float(), blocks.float())
    return dots.relu().sum(2) * index_query.shape[-1] ** -0.5


def complete_blocks(length: int, first: int, count: int, ratio: int, device: torch.device) -> Tensor:
    """[count, length / ratio] bool: block b is complete for the query at position t when its last token is <= t."""
    ends = torch.arange(ratio - 1, length, ratio, device=device)
    return ends <= torch.arange(first, first + count, device=device).unsqueeze(1)


@torch.no_grad()
def attention_mask(index_query: Tensor, blocks: Tensor, length: int, shape: PocketShape) -> Tensor:
    """The sparse attention's mask [sequences, 1, length, length] bool: best complete blocks and the open tail."""
    ratio, width = shape.index_ratio, shape.index_head
    index_query = index_query.view(-1, length, shape.index_heads, width)
    scores = block_scores(index_query, blocks.view(-1, length // ratio, width), 0, length)
    complete = complete_blocks(length, 0, length, ratio, scores.device)
    keep = min(shape.index_budget // ratio, length // ratio)
    chosen = scores.masked_fill(~complete, -1.0).topk(keep, -1).indices
    picked = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, chosen, True) & complete
    positions = torch.arange(length, device=scores.device)
    tail_start = (positions + 1) // ratio * ratio
    tail = (positions >= tail_start.unsqueeze(1)) & (positions <= positions.unsqueeze(1))
    return (picked.repeat_interleave(ratio, -1) | tail).unsqueeze(1)


def indexer_loss(
    query: Tensor, key: Tensor, index_query: Tensor, blocks: Tensor, length: int, targets: IndexerTargets
) -> Tensor:
    """KL from the attention's mass per complete block (detached) to the indexer's softmax over the same blocks.

    query [rows, heads, width], key [rows, 1, width], index_query [rows, index heads, index width],
    blocks [rows / ratio, index width].
    """
    ratio = query.shape[0] // blocks.shape[0]
    sequences, first, count = targets.sequences, targets.first, targets.count
    with torch.no_grad():
        queries = query.view(-1, length, *query.shape[1:])[:sequences, first : first + count]
        keys = key.view(-1, length, key.shape[-1])[:sequences]
        scores = torch.einsum("sqhw,skw->shqk", queries.float(), keys.float()) * query.shape[-1] ** -0.5
        rows = torch.arange(first, first + count, device=scores.device).unsqueeze(1)
        future = torch.arange(length, device=scores.device) > rows
        mass = scores.masked_fill(future, float("-inf")).softmax(-1).sum(1)
        mass = mass.view(sequences, count, -1, ratio).sum(-1)
        complete = complete_blocks(length, first, count, ratio, mass.device)
        mass = mass * complete
        target = mass / mass.sum(-1, keepdim=True).clamp_min(1e-20)
    index_query = index_query.view(-1, length, *index_query.shape[1:])[:sequences]
    blocks = blocks.view(-1, length // ratio, blocks.shape[-1])[:sequences]
    guess = block_scores(index_query, blocks, first, count).masked_fill(~complete, -1e4).log_softmax(-1)
    divergence = F.kl_div(guess, target, reduction="none").sum(-1)
    return divergence.mean()
