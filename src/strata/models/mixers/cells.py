"""Keys and values of an attention layer as a slot keeps them, and attention over them. Knows no family."""

from collections.abc import Callable

import torch

from strata.models.blocks.attention import AttentionShape, Heads
from strata.quant.cell_codes import rotate
from strata.state.kv import GrowingCells

Attend = Callable[[torch.Tensor, Heads, Heads], torch.Tensor]  # queries, keys, values -> [rows, heads * head_dim]


def new_cells(shape: AttentionShape, dtype: torch.dtype) -> tuple[GrowingCells, GrowingCells]:
    """A slot's keys and values at the start of a text, of a layer that computes in `dtype`."""
    keys, values = shape.cells.keys, shape.cells.values
    return (
        GrowingCells(keys, shape.kv_heads, shape.head_dim, dtype),
        GrowingCells(values, shape.kv_heads, shape.head_dim, dtype),
    )


def attend(query: torch.Tensor, keys: GrowingCells, values: GrowingCells, over: Attend) -> torch.Tensor:
    """Attention `over` cells of query [rows, query_heads, head_dim], which is rotated where the keys are.

    Returns [rows, query_heads * head_dim], rotated back where the values are rotated.
    """
    if keys.code.is_rotated:
        query = rotate(query.float()).to(query.dtype)
    attended = over(query, keys, values)
    if not values.code.is_rotated:
        return attended
    heads = attended.float().unflatten(1, (-1, values.head_dim))
    return rotate(heads).flatten(1).to(attended.dtype)
