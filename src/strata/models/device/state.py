"""The state of all slots of a model on one device: big tensors of all layers, and how a slot's part is moved.

Knows no kernel; a window reads these tensors, its commit writes them, the window itself where no row can be refused.
Cells of a row are written before they are read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from strata.models.device.sizes import StateSizes, cells_of


@dataclass(frozen=True)
class SavedSlot:
    """A slot's state after `rows` rows, in memory of its own."""

    rows: int
    tensors: Sequence[torch.Tensor]

    def bytes_used(self) -> int:
        """Bytes of the copy."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


@dataclass(frozen=True)
class DeviceState:
    """float32 unless said; a model without a part has tensors of no layer."""

    sizes: StateSizes
    delta: torch.Tensor  # [delta layers, slots, value_heads, key_dim, value_dim]
    conv_tail: torch.Tensor  # [delta layers, slots, kernel - 1, conv_width]
    keys: torch.Tensor  # [attention layers, slots, cells, kv_heads, head_dim]
    values: torch.Tensor
    raw: torch.Tensor  # [attention layers, slots, cells, index_dim]
    pooled: torch.Tensor  # [attention layers, slots, cells // ratio, index_dim]
    history: torch.Tensor  # int32 [slots, ngram_size - 1]: the last tokens, the same for all layers
    ngram_tail: torch.Tensor  # [ngram layers, slots, tail rows, streams * hidden]

    @classmethod
    def empty(cls, sizes: StateSizes, slots: int, context: int, device: torch.device) -> "DeviceState":
        """Every slot at the start of a text, with room for `context` rows."""
        cells = cells_of(context)

        def room(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        delta_layers, attention_layers = (sizes.delta_layers, slots), (sizes.attention_layers, slots)
        return cls(
            sizes,
            delta=room(*delta_layers, sizes.value_heads, sizes.key_dim, sizes.value_dim),
            conv_tail=room(*delta_layers, sizes.conv_rows, sizes.conv_width),
            keys=room(*attention_layers, cells, sizes.kv_heads, sizes.head_dim),
            values=room(*attention_layers, cells, sizes.kv_heads, sizes.head_dim),
            raw=room(*attention_layers, cells, sizes.index_dim),
            pooled=room(*attention_layers, cells // sizes.ratio, sizes.index_dim),
            history=torch.full((slots, sizes.history_rows), sizes.end_of_text, dtype=torch.int32, device=device),
            ngram_tail=room(sizes.ngram_layers, slots, sizes.tail_rows, sizes.stream_width),
        )

    @property
    def slots(self) -> int:
        """How many conversations there is room for."""
        return self.history.shape[0]

    @property
    def cells(self) -> int:
        """Rows that a slot has room for."""
        return self.keys.shape[2]

    def bytes_used(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def reset(self, slot: int) -> None:
        """Put a slot at the start of a text. Its cells stay: none is read before a row writes it."""
        for tensor in (self.delta, self.conv_tail, self.ngram_tail):
            tensor[:, slot].zero_()
        self.history[slot].fill_(self.sizes.end_of_text)

    def copy(self, source: int, target: int, rows: int) -> None:
        """Make slot `target` what slot `source` is after its `rows` committed rows."""
        for found, wanted in zip(self._parts(source, rows), self._parts(target, rows), strict=True):
            wanted.copy_(found)

    def save(self, slot: int, rows: int) -> SavedSlot:
        """A copy of a slot's state after its `rows` committed rows."""
        return SavedSlot(rows, [part.clone() for part in self._parts(slot, rows)])

    def restore(self, slot: int, saved: SavedSlot) -> None:
        """Make a slot what was saved."""
        for found, wanted in zip(saved.tensors, self._parts(slot, saved.rows), strict=True):
            wanted.copy_(found)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        cells = self.keys, self.values, self.raw, self.pooled
        return self.delta, self.conv_tail, *cells, self.history, self.ngram_tail

    def _parts(self, slot: int, rows: int) -> Iterator[torch.Tensor]:
        """What the first `rows` rows left behind: views."""
        for whole in (self.delta, self.conv_tail, self.ngram_tail):
            yield whole[:, slot]
        for cells in (self.keys, self.values, self.raw):
            yield cells[:, slot, :rows]
        yield self.pooled[:, slot, : rows // self.sizes.ratio]
        yield self.history[slot]
