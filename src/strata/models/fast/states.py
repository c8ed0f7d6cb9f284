"""Where slots' states keep their tensors, as the C++ library is told; what replaces them when rows become state.

Knows every kind of state; knows no weights and no call.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from strata.models.mixers.delta_net import DeltaNetState
from strata.models.mixers.indexed_attention import IndexedAttentionState


@dataclass(frozen=True)
class SlotRows:
    """A slot's rows in a call: where they start, its state layer by layer, and their tokens."""

    position: int
    layers: Sequence[Any]
    token_ids: torch.Tensor  # [rows] int64


class Successors:
    """The tensors that replace a layer's states at a commit."""

    def __init__(self, mixer: Any, ngram: Any, takes_final: bool) -> None:
        self.conv_tail: torch.Tensor | None = None
        self.delta: torch.Tensor | None = None
        self.history: torch.Tensor | None = None
        self.ngram_tail: torch.Tensor | None = None
        if isinstance(mixer, DeltaNetState):
            self.conv_tail = torch.empty_like(mixer.conv_tail)
            self.delta = None if takes_final else torch.empty_like(mixer.delta)
        if ngram is not None:
            self.history, self.ngram_tail = torch.empty_like(ngram.history), torch.empty_like(ngram.conv_tail)

    def pointers(self, writes_delta: bool) -> list[int | None]:
        """As `StrataNewState`."""
        delta = self.delta if writes_delta else None
        return [address_of(self.conv_tail), address_of(delta), address_of(self.history), address_of(self.ngram_tail)]


def parts_of(layer: Any) -> tuple[Any, Any]:
    """A layer's mixer state and its n-gram state, if it has one."""
    return getattr(layer, "mixer", layer), getattr(layer, "ngram", None)


def address_of(tensor: torch.Tensor | None) -> int | None:
    """Where a tensor begins; None stays None."""
    return None if tensor is None else tensor.data_ptr()


def pointer_array(pointers: Sequence[int | None]) -> Any:
    """Addresses as a C array."""
    return (ctypes.c_void_p * len(pointers))(*pointers)


def reserve_cells(slot: SlotRows, count: int, ratio: int) -> None:
    """Room for the rows' cells in every attention layer."""
    stop = slot.position + count
    for layer in slot.layers:
        mixer, _ = parts_of(layer)
        if isinstance(mixer, DeltaNetState):
            continue
        mixer.keys.reserve(stop)
        mixer.values.reserve(stop)
        if isinstance(mixer, IndexedAttentionState):
            mixer.raw.reserve(stop)
            mixer.pooled.reserve(stop // ratio)


def final_states(slots: Sequence[SlotRows]) -> list[torch.Tensor | None]:
    """Where the library puts the delta states after all rows."""
    found: list[torch.Tensor | None] = []
    for layer in slots[0].layers:
        mixer, _ = parts_of(layer)
        is_delta = isinstance(mixer, DeltaNetState)
        found.append(torch.empty(len(slots), *mixer.delta.shape) if is_delta else None)
    return found


def state_pointers(layers: Sequence[Any]) -> list[int | None]:
    """A slot's `StrataLayerState`s."""
    pointers: list[int | None] = []
    for layer in layers:
        mixer, ngram = parts_of(layer)
        if isinstance(mixer, DeltaNetState):
            pointers += [None] * 6 + [mixer.conv_tail.data_ptr(), mixer.delta.data_ptr()]
        else:
            cells = (mixer.keys.codes, mixer.values.codes, mixer.keys.scales, mixer.values.scales)
            index = (mixer.raw, mixer.pooled) if isinstance(mixer, IndexedAttentionState) else (None, None)
            pointers += [None if part is None else part.cells.data_ptr() for part in (*cells, *index)] + [None, None]
        pointers += [None, None] if ngram is None else [ngram.history.data_ptr(), ngram.conv_tail.data_ptr()]
    return pointers


def advance(layer: Any, fresh: Successors, position: int, ratio: int) -> None:
    """Make the successors and the cells up to `position` a layer's state."""
    mixer, ngram = parts_of(layer)
    if isinstance(mixer, DeltaNetState):
        assert fresh.conv_tail is not None and fresh.delta is not None
        mixer.conv_tail, mixer.delta = fresh.conv_tail, fresh.delta
    else:
        mixer.keys.count = mixer.values.count = position
        if isinstance(mixer, IndexedAttentionState):
            mixer.raw.count = position
            mixer.pooled.count = position // ratio
    if ngram is not None:
        assert fresh.history is not None and fresh.ngram_tail is not None
        ngram.history, ngram.conv_tail = fresh.history, fresh.ngram_tail
