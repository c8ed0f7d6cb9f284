"""Windows, commits and reads of one model through the C++ library, over the same states that the torch twin uses.

Knows calls and their buffers; knows no weights and no maths. One call of the library computes a window, one commits a
slot's rows, one reads a tile's rows through a layer; between them no tensor is touched.
"""

import ctypes
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from strata.models.blocks.ngram_embedding import table_row_ids
from strata.models.fast.states import (
    SlotRows,
    Successors,
    address_of,
    advance,
    final_states,
    parts_of,
    pointer_array,
    reserve_cells,
    state_pointers,
)
from strata.models.mixers.ngram import NgramPart
from strata.native import mixers

# Rows of a read that pass a layer together: enough for an expert of many to have some, and what bounds a read's memory.
READ_ROWS = 512


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
class FastRows:
    """What was computed of some rows."""

    hidden: torch.Tensor  # [rows, hidden width]
    logits: torch.Tensor  # [logit rows, vocabulary]
    routed: torch.Tensor | None  # [layers, rows, experts per token] int32; a dense layer's part is zero
    is_finite: bool


@dataclass(frozen=True)
class FastWindow(FastRows):
    """A computed window and all that its commit reads."""

    call: "_Call"
    slots: Sequence[SlotRows]


class FastWindows:
    """The fast twin of a model's windows and reads. Not thread-safe."""

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
        rows = sum(slot.token_ids.shape[0] for slot in slots)
        stored = torch.empty(self.model.window_floats(rows))
        made = self._room(rows, first_logit_row, len(slots[0].layers) if with_routing else 0)
        call = self._prepare(slots, stored, made, joined_hidden, first_logit_row)
        self.model.window(call.native)
        return FastWindow(made.hidden, made.logits, made.routed, call.is_finite, call, slots)

    def commit(self, window: FastWindow, index: int, layers: Sequence[Any], accepted: int) -> None:
        """Make the first `accepted` rows (at least 1) of the window's slot `index` part of the states `layers`."""
        slot = window.slots[index]
        reserve_cells(SlotRows(slot.position, layers, slot.token_ids), accepted, self.shape.ratio)
        takes_final = accepted == slot.token_ids.shape[0]
        pointers: list[int | None] = []
        successors = []
        for layer, final in zip(layers, window.call.final_delta, strict=True):
            fresh = Successors(*parts_of(layer), takes_final)
            if final is not None and takes_final:
                # a part of a larger tensor would keep the other slots' states alive
                fresh.delta = final[0] if final.shape[0] == 1 else final[index].clone()
            successors.append(fresh)
            pointers += fresh.pointers(writes_delta=not takes_final)
        states = pointer_array(state_pointers(layers))
        self.model.commit(window.call.native, index, accepted, states, pointer_array(pointers))
        for layer, fresh in zip(layers, successors, strict=True):
            advance(layer, fresh, slot.position + accepted, self.shape.ratio)

    def read_steps(
        self,
        slot: SlotRows,
        *,
        joined_hidden: torch.Tensor | None = None,
        first_logit_row: int = 0,
        with_routing: bool = False,
    ) -> Generator[None, None, FastRows]:
        """Compute a slot's rows and make them state, `READ_ROWS` at a time; each row has the bits a window gives it.

        Yields between two layers of such a tile, where other slots' calls may come. Who stops there, or is stopped by
        an exception (Ctrl-C), leaves the states at the last tile's end.
        """
        rows = slot.token_ids.shape[0]
        made = self._room(rows, first_logit_row, len(slot.layers) if with_routing else 0)
        stored = torch.empty(self.model.read_floats(min(rows, READ_ROWS)))
        for start in range(0, rows, READ_ROWS):
            if start:
                yield
            stop = min(rows, start + READ_ROWS)
            tile = SlotRows(slot.position + start, slot.layers, slot.token_ids[start:stop])
            skipped = max(0, start - first_logit_row)
            routed = None if made.routed is None else torch.empty_like(made.routed[:, start:stop])
            parts = FastRows(made.hidden[start:stop], made.logits[skipped:], routed, True)
            joined = None if joined_hidden is None else joined_hidden[start:stop]
            first = max(0, min(stop, first_logit_row) - start)
            is_finite = yield from self._tile_steps(tile, stored, parts, joined, first)
            if made.routed is not None and routed is not None:
                made.routed[:, start:stop] = routed
            if not is_finite:
                return FastRows(made.hidden, made.logits, made.routed, False)
        return made

    def part_seconds(self) -> dict[str, float]:
        """What calls have taken so far, by part; for measuring."""
        times = self.model.times()
        return {part: getattr(times, part) / 1e9 for part in mixers.TIMED_PARTS}

    def _tile_steps(
        self, tile: SlotRows, stored: torch.Tensor, made: FastRows, joined: torch.Tensor | None, first_logit_row: int
    ) -> Generator[None, None, bool]:
        call = self._prepare([tile], stored, made, joined, first_logit_row)
        successors = [Successors(*parts_of(layer), takes_final=True) for layer in tile.layers]
        for fresh, final in zip(successors, call.final_delta, strict=True):
            fresh.delta = None if final is None else final[0]
        replaced = pointer_array([pointer for each in successors for pointer in each.pointers(writes_delta=False)])
        for index in range(len(tile.layers)):
            if index:
                yield
            self.model.read_layer(call.native, index, replaced)
        for layer, fresh in zip(tile.layers, successors, strict=True):
            advance(layer, fresh, tile.position + tile.token_ids.shape[0], self.shape.ratio)
        return call.is_finite

    def _room(self, rows: int, first_logit_row: int, routed_layers: int) -> FastRows:
        """Where results go; `routed_layers` 0: nobody asks for the routing."""
        hidden = torch.empty(rows, self.shape.hidden_width)
        logits = torch.empty(max(0, rows - first_logit_row), self.shape.vocabulary)
        routed = None
        if routed_layers:
            routed = torch.zeros(routed_layers, rows, max(self.shape.experts_per_token), dtype=torch.int32)
        return FastRows(hidden, logits, routed, True)

    def _prepare(
        self,
        slots: Sequence[SlotRows],
        stored: torch.Tensor,
        made: FastRows,
        joined_hidden: torch.Tensor | None,
        first_logit_row: int,
    ) -> "_Call":
        """The call of the library for these rows, with room in every state."""
        for slot in slots:
            reserve_cells(slot, slot.token_ids.shape[0], self.shape.ratio)
        token_ids = torch.cat([slot.token_ids for slot in slots]) if len(slots) > 1 else slots[0].token_ids.contiguous()
        bounds = (ctypes.c_int32 * (len(slots) + 1))(0)
        for index, slot in enumerate(slots):
            bounds[index + 1] = bounds[index] + slot.token_ids.shape[0]
        positions = (ctypes.c_int64 * len(slots))(*(slot.position for slot in slots))
        states = pointer_array([pointer for slot in slots for pointer in state_pointers(slot.layers)])
        final_delta = final_states(slots)
        finals = pointer_array([address_of(state) for state in final_delta])
        ngram_rows = self._gather(slots)
        gathered = None if ngram_rows is None else pointer_array([address_of(each) for each in ngram_rows])
        is_finite = ctypes.c_int32(1)
        native = mixers.Window(
            rows=token_ids.shape[0],
            slots=len(slots),
            bounds=ctypes.addressof(bounds),
            positions=ctypes.addressof(positions),
            token_ids=token_ids.data_ptr(),
            states=ctypes.addressof(states),
            joined_hidden=address_of(joined_hidden),
            ngram_rows=None if gathered is None else ctypes.addressof(gathered),
            stored=stored.data_ptr(),
            final_delta=ctypes.addressof(finals),
            first_logit_row=first_logit_row,
            hidden=made.hidden.data_ptr(),
            logits=made.logits.data_ptr(),
            routed=address_of(made.routed),
            is_finite=ctypes.addressof(is_finite),
        )
        kept = (bounds, positions, token_ids, states, stored, finals, ngram_rows, gathered, joined_hidden, made)
        return _Call(native, final_delta, is_finite, kept)

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


@dataclass(frozen=True)
class _Call:
    """A call of the library: its struct, the delta states after all rows, and what the struct points to."""

    native: mixers.Window
    final_delta: Sequence[torch.Tensor | None]  # of each layer [slots, value_heads, key_dim, value_dim]
    finite_flag: ctypes.c_int32
    kept: tuple[Any, ...]

    @property
    def is_finite(self) -> bool:
        """Whether all logits (of no logits: the rows) were finite."""
        return bool(self.finite_flag.value)
