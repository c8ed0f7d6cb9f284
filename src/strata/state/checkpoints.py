"""Going back in a state, and starting another from a place inside it, without copying what only grows.

Knows how states are built - dataclasses, lists, rows that grow, tensors that are replaced and never written in place -
and no family. What grows is cut back to its count; the rest is kept by reference, so a checkpoint costs the tensors
that the state has since replaced, and no time to speak of.

    rows that grow     |==========|-----------|        a checkpoint holds the count; rows in front of it never change
                       0        count       now
"""

import copy
import dataclasses
from typing import Any

import torch

from strata.state.kv import GrowingRows


def take_checkpoint(state: Any) -> Any:
    """What `go_back` and `fork` need to find the state as it is now."""
    if isinstance(state, GrowingRows):
        return state.count
    if isinstance(state, list):
        return [take_checkpoint(part) for part in state]
    if dataclasses.is_dataclass(state):
        return {field.name: take_checkpoint(getattr(state, field.name)) for field in dataclasses.fields(state)}
    return state


def go_back(state: Any, saved: Any) -> Any:
    """Make a state what it was; returns it, or what takes its place. Checkpoints from after that moment are void."""
    if isinstance(state, GrowingRows):
        state.truncate(saved)
        return state
    if isinstance(state, list):
        return [go_back(part, old) for part, old in zip(state, saved, strict=False)]  # a list grows at its end
    if dataclasses.is_dataclass(state):
        for name, old in saved.items():
            setattr(state, name, go_back(getattr(state, name), old))
        return state
    return saved


def fork(state: Any, saved: Any) -> Any:
    """A new state as `state` was at the checkpoint, which may have moved on; they share no rows that grow."""
    if isinstance(state, GrowingRows):
        return state.clone(saved)
    if isinstance(state, list):
        return [fork(part, old) for part, old in zip(state, saved, strict=False)]
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        made = copy.copy(state)
        for name, old in saved.items():
            setattr(made, name, fork(getattr(state, name), old))
        return made
    return saved


def checkpoint_bytes(saved: Any) -> int:
    """Bytes of the tensors that a checkpoint keeps."""
    if isinstance(saved, torch.Tensor):
        return saved.numel() * saved.element_size()
    if isinstance(saved, list):
        return sum(map(checkpoint_bytes, saved))
    if isinstance(saved, dict):
        return sum(map(checkpoint_bytes, saved.values()))
    return 0
