"""Going back in a state, and starting another from a place inside it, without copying what only grows.

Knows how states are built - dataclasses, lists, tensors that are replaced and never written in place, and parts that
see to their own checkpoints: rows that grow, a slot of a device - and no family. What grows is cut back to its count;
the rest is kept by reference, so a checkpoint costs the tensors that the state has since replaced, and no time to
speak of. A part that is written in place copies itself.

    rows that grow     |==========|-----------|        a checkpoint holds the count; rows in front of it never change
                       0        count       now
"""

import copy
import dataclasses
from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class Restorable(Protocol):
    """A state, or a part of one, that sees to its own checkpoints. What is saved is an opaque value."""

    def take_checkpoint(self, *, is_mark: bool) -> Any:
        """What the other two need to find it as it is now.

        is_mark: a place inside a reply. Taking a mark makes all but the one before it void.
        """
        ...

    def go_back(self, saved: Any) -> None:
        """Be as it was. Checkpoints from after that moment are void."""
        ...

    def fork(self, saved: Any) -> Any:
        """Another one as this one was, which may have moved on; they share nothing that changes."""
        ...


@runtime_checkable
class Measured(Protocol):
    """What a `Restorable` saved that takes memory of its own."""

    def bytes_used(self) -> int:
        """Bytes that are kept for it alone."""
        ...


def take_checkpoint(state: Any, *, is_mark: bool = False) -> Any:
    """What `go_back` and `fork` need to find the state as it is now; marks: see `Restorable`."""
    if isinstance(state, Restorable):
        return state.take_checkpoint(is_mark=is_mark)
    if isinstance(state, list):
        return [take_checkpoint(part, is_mark=is_mark) for part in state]
    if dataclasses.is_dataclass(state):
        fields = dataclasses.fields(state)
        return {field.name: take_checkpoint(getattr(state, field.name), is_mark=is_mark) for field in fields}
    return state


def go_back(state: Any, saved: Any) -> Any:
    """Make a state what it was; returns it, or what takes its place. Checkpoints from after that moment are void."""
    if isinstance(state, Restorable):
        state.go_back(saved)
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
    if isinstance(state, Restorable):
        return state.fork(saved)
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
    return saved.bytes_used() if isinstance(saved, Measured) else 0
