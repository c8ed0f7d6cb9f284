"""Windows and commits of one model through the C++ library, over the same states that the torch twin uses.

Knows where states keep their tensors; knows no weights and no maths. One call of the library computes a window, one
commits a slot's rows; between them no tensor is touched.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from strata.models.blocks.ngram_embedding import table_row_ids
from strata.models.mixers.attention import AttentionState
from strata.models.mixers.delta_net import DeltaNetState
from strata.models.mixers.indexed_attention import IndexedAttentionState
from strata.models.mixers.ngram import NgramPart
from strata.native import mixers


@dataclass(frozen=True)
class SlotRows:
    """A slot's rows in a window: where they start, its state layer by layer, and their tokens."""

    position: int
    layers: Sequence[Any]
    token_ids: torch.Tensor  # [rows] int64


@dataclass(frozen=True)
class WindowShape:
    """What the Python side must know of a model to hand its tensors over."""

    hidden_width: int  # of a row between layers: streams * hidden
    vocabulary: int
    ratio: int  # cells of an indexer's block; 0: there is no indexer
    ngrams: Sequence[NgramPart | None]  # of each layer
    table_is_resident: Sequence[bool]  # whether the library gathers the layer's n-gram rows itself
    experts_per_token: Sequence[int]  # of each layer; 0: a dense one


@dataclass(frozen=True)
class FastWindow:
    """A computed window and all that its commit reads."""

    native: mixers.Window
    slots: Sequence[SlotRows]
    hidden: torch.Tensor  # [rows, hidden width]
    logits: torch.Tensor  # [logit rows, vocabulary]
    routed: torch.Tensor | None  # [layers, rows, experts per token] int32; a dense layer's part is zero
    is_finite: bool
    final_delta: Sequence[torch.Tensor | None]  # of each layer [slots, value_heads, key_dim, value_dim]
    kept: tuple[Any, ...]  # what `native` points to


class FastWindows:
    """The fast twin of a model's windows. Not thread-safe."""

    def __init__(self, model: mixers.Model, shape: WindowShape, kept: Any) -> None:
        self.model = model
        self.shape = shape
        self._kept = kept  # the weights that the model points to

    def compute(
        self,
        slots: Sequence[SlotRows],
        *,
        joined_hidden: torch.Tensor | None = None,
        first_logit_row: int = 0,
        with_routing: bool = False,
    ) -> FastWindow:
        """Compute the rows of some slots. No committed state changes; cells are written behind the committed ones."""
        counts = [slot.token_ids.shape[0] for slot in slots]
        rows, shape, layer_count = sum(counts), self.shape, len(slots[0].layers)
        token_ids = torch.cat([slot.token_ids for slot in slots]) if len(slots) > 1 else slots[0].token_ids.contiguous()
        for slot, count in zip(slots, counts, strict=True):
            _reserve(slot, count, shape.ratio)
        final_delta = _final_states(slots)
        ngram_rows = self._gather(slots)
        hidden = torch.empty(rows, shape.hidden_width)
        logits = torch.empty(max(0, rows - first_logit_row), shape.vocabulary)
        routed = _routing_room(shape, layer_count, rows) if with_routing else None
        stored = torch.empty(self.model.window_floats(rows))
        bounds = (ctypes.c_int32 * (len(slots) + 1))(0)
        for index, count in enumerate(counts):
            bounds[index + 1] = bounds[index] + count
        positions = (ctypes.c_int64 * len(slots))(*(slot.position for slot in slots))
        states = _pointer_array([pointer for slot in slots for pointer in _state_pointers(slot.layers)])
        finals = _pointer_array([None if state is None else state.data_ptr() for state in final_delta])
        gathered = None if ngram_rows is None else _pointer_array([_address(each) for each in ngram_rows])
        is_finite = ctypes.c_int32(1)
        native = mixers.Window(
            rows,
            len(slots),
            ctypes.addressof(bounds),
            ctypes.addressof(positions),
            token_ids.data_ptr(),
            ctypes.addressof(states),
            _address(joined_hidden),
            None if gathered is None else ctypes.addressof(gathered),
            stored.data_ptr(),
            ctypes.addressof(finals),
            first_logit_row,
            0,
            hidden.data_ptr(),
            logits.data_ptr(),
            _address(routed),
            ctypes.addressof(is_finite),
        )
        self.model.window(native)
        kept = (bounds, positions, token_ids, stored, finals, is_finite)
        return FastWindow(native, slots, hidden, logits, routed, bool(is_finite.value), final_delta, kept)

    def commit(self, window: FastWindow, index: int, layers: Sequence[Any], accepted: int) -> None:
        """Make the first `accepted` rows (at least 1) of the window's slot `index` part of the states `layers`."""
        slot = window.slots[index]
        _reserve(SlotRows(slot.position, layers, slot.token_ids), accepted, self.shape.ratio)
        takes_final = accepted == slot.token_ids.shape[0]
        pointers: list[int | None] = []
        successors = []
        for layer, final in zip(layers, window.final_delta, strict=True):
            mixer, ngram = _parts(layer)
            fresh = _Successors(mixer, ngram, takes_final)
            if final is not None and takes_final:
                # a part of a larger tensor would keep the other slots' states alive
                fresh.delta = final[0] if final.shape[0] == 1 else final[index].clone()
            successors.append(fresh)
            pointers += fresh.pointers(writes_delta=not takes_final)
        states = _pointer_array(_state_pointers(layers))
        self.model.commit(window.native, index, accepted, states, _pointer_array(pointers))
        for layer, fresh in zip(layers, successors, strict=True):
            _advance(layer, fresh, slot.position + accepted, self.shape.ratio)

    def part_seconds(self) -> dict[str, float]:
        """What windows and commits have taken so far, by part; for measuring."""
        times = self.model.times()
        return {part: getattr(times, part) / 1e9 for part in mixers.TIMED_PARTS}

    def _gather(self, slots: Sequence[SlotRows]) -> list[torch.Tensor | None] | None:
        """Rows of n-gram tables that are not in memory, for each layer; None if the library finds all by itself."""
        if all(self.shape.table_is_resident):
            return None
        found: list[torch.Tensor | None] = []
        for index, (ngram, is_resident) in enumerate(zip(self.shape.ngrams, self.shape.table_is_resident, strict=True)):
            if ngram is None or is_resident:
                found.append(None)
                continue
            tokens = [torch.cat((slot.layers[index].ngram.history, slot.token_ids)) for slot in slots]
            row_ids = torch.cat([table_row_ids(each, ngram.shape) for each in tokens])
            found.append(ngram.table(row_ids.flatten()).float().view(row_ids.shape[0], -1).contiguous())
        return found


class _Successors:
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
        return [_address(self.conv_tail), _address(delta), _address(self.history), _address(self.ngram_tail)]


def _parts(layer: Any) -> tuple[Any, Any]:
    """A layer's mixer state and its n-gram state, if it has one."""
    return getattr(layer, "mixer", layer), getattr(layer, "ngram", None)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _routing_room(shape: WindowShape, layers: int, rows: int) -> torch.Tensor:
    return torch.zeros(layers, rows, max(shape.experts_per_token), dtype=torch.int32)


def _pointer_array(pointers: Sequence[int | None]) -> Any:
    return (ctypes.c_void_p * len(pointers))(*pointers)


def _reserve(slot: SlotRows, count: int, ratio: int) -> None:
    """Room for the rows' cells in every attention layer."""
    stop = slot.position + count
    for layer in slot.layers:
        mixer, _ = _parts(layer)
        if isinstance(mixer, DeltaNetState):
            continue
        mixer.keys.reserve(stop)
        mixer.values.reserve(stop)
        if isinstance(mixer, IndexedAttentionState):
            mixer.raw.reserve(stop)
            mixer.pooled.reserve(stop // ratio)


def _final_states(slots: Sequence[SlotRows]) -> list[torch.Tensor | None]:
    """Where the library puts the delta states after all rows."""
    found: list[torch.Tensor | None] = []
    for layer in slots[0].layers:
        mixer, _ = _parts(layer)
        is_delta = isinstance(mixer, DeltaNetState)
        found.append(torch.empty(len(slots), *mixer.delta.shape) if is_delta else None)
    return found


def _state_pointers(layers: Sequence[Any]) -> list[int | None]:
    """A slot's `StrataLayerState`s."""
    pointers: list[int | None] = []
    for layer in layers:
        mixer, ngram = _parts(layer)
        if isinstance(mixer, IndexedAttentionState):
            cells = (mixer.keys, mixer.values, mixer.raw, mixer.pooled)
            pointers += [part.cells.data_ptr() for part in cells] + [None, None]
        elif isinstance(mixer, AttentionState):
            pointers += [mixer.keys.cells.data_ptr(), mixer.values.cells.data_ptr(), None, None, None, None]
        else:
            pointers += [None, None, None, None, mixer.conv_tail.data_ptr(), mixer.delta.data_ptr()]
        pointers += [None, None] if ngram is None else [ngram.history.data_ptr(), ngram.conv_tail.data_ptr()]
    return pointers


def _advance(layer: Any, fresh: _Successors, position: int, ratio: int) -> None:
    """Make the successors and the cells up to `position` a layer's state."""
    mixer, ngram = _parts(layer)
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
