"""The state of all slots of a model on one device: big tensors of all layers, and how a slot's part is moved.

Knows no kernel; a window reads these tensors, its commit writes them, the window itself where no row can be refused.
Cells of a row are written before they are read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from strata.kernels.attention_rows import AttentionCells
from strata.models.device.cell_pools import CellPools
from strata.models.device.sizes import StateSizes, cells_of
from strata.quant.cell_codes import CellCode, CellKind, CellRows


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
    kind: CellKind
    delta: torch.Tensor  # [delta layers, slots, value_heads, key_dim, value_dim]
    conv_tail: torch.Tensor  # [delta layers, slots, kernel - 1, conv_width]
    keys: CellRows  # heads [attention layers, slots, cells, kv_heads], as `kind` keeps them
    values: CellRows
    raw: torch.Tensor  # [attention layers, slots, cells, index_dim]
    pooled: torch.Tensor  # [attention layers, slots, cells // ratio, index_dim]
    history: torch.Tensor  # int32 [slots, ngram_size - 1]: the last tokens, the same for all layers
    ngram_tail: torch.Tensor  # [ngram layers, slots, tail rows, streams * hidden]
    pools: CellPools | None = None  # of keys and values that lie in main memory; None: they lie on the device

    @classmethod
    def empty(
        cls,
        sizes: StateSizes,
        slots: int,
        context: int,
        kind: CellKind,
        device: torch.device,
        resident: int = 0,
    ) -> "DeviceState":
        """Every slot at the start of a text, with room for `context` rows.

        resident: cells a slot whose keys and values the device keeps while all lie in main memory; 0: all lie on the
        device. Raises what `CellPools.empty` raises.
        """
        cells = cells_of(context)
        has_pools = resident > 0 and sizes.attention_layers > 0  # a run of a model's layers may have no attention
        pools = CellPools.empty(sizes, slots, cells, resident, kind, device) if has_pools else None

        def room(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        def heads(code: CellCode) -> CellRows:
            of_all = (sizes.attention_layers, slots, cells, sizes.kv_heads)
            return CellRows.zeros(code, *of_all, head_dim=sizes.head_dim, device=device)

        delta_layers, attention_layers = (sizes.delta_layers, slots), (sizes.attention_layers, slots)
        return cls(
            sizes,
            kind,
            delta=room(*delta_layers, sizes.value_heads, sizes.key_dim, sizes.value_dim),
            conv_tail=room(*delta_layers, sizes.conv_rows, sizes.conv_width),
            keys=heads(kind.keys) if pools is None else pools.stored.keys,
            values=heads(kind.values) if pools is None else pools.stored.values,
            raw=room(*attention_layers, cells, sizes.index_dim),
            pooled=room(*attention_layers, cells // sizes.ratio, sizes.index_dim),
            history=torch.full((slots, sizes.history_rows), sizes.end_of_text, dtype=torch.int32, device=device),
            ngram_tail=room(sizes.ngram_layers, slots, sizes.tail_rows, sizes.stream_width),
            pools=pools,
        )

    @property
    def slots(self) -> int:
        """How many conversations there is room for."""
        return self.history.shape[0]

    @property
    def cells(self) -> int:
        """Rows that a slot has room for."""
        return self.keys.codes.shape[2]

    def attention_cells(self, layer: int) -> AttentionCells:
        """Those of an attention layer."""
        cells = AttentionCells(self.kind, self.keys[layer], self.values[layer])
        if not self.sizes.index_dim:
            return cells
        pages = None if self.pools is None else self.pools.layer(layer)
        return replace(cells, raw=self.raw[layer], pooled=self.pooled[layer], pages=pages)

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
        if self.pools is not None:
            self.pools.copy(source, target, rows)
        heads = self._heads if self.pools is None else ()
        for found, wanted in zip(self._parts(source, rows, heads), self._parts(target, rows, heads), strict=True):
            wanted.copy_(found)

    def save(self, slot: int, rows: int) -> SavedSlot:
        """A copy of a slot's state after its `rows` committed rows. Waits where a part of it lies in main memory."""
        if self.pools is not None:
            self.pools.settle()
        return SavedSlot(rows, [part.clone() for part in self._parts(slot, rows, self._heads)])

    def restore(self, slot: int, saved: SavedSlot) -> None:
        """Make a slot what was saved. Waits where a part of it lies in main memory."""
        if self.pools is not None:
            self.pools.settle()
            self.pools.forget(slot)
        for found, wanted in zip(saved.tensors, self._parts(slot, saved.rows, self._heads), strict=True):
            wanted.copy_(found)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them."""
        pools = () if self.pools is None else self.pools.tensors
        cells = *self._heads, self.raw, self.pooled
        return self.delta, self.conv_tail, *cells, self.history, self.ngram_tail, *pools

    @property
    def _heads(self) -> tuple[torch.Tensor, ...]:
        return *self.keys.tensors, *self.values.tensors

    def _parts(self, slot: int, rows: int, heads: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """What the first `rows` rows left behind, of keys and values in `heads`: views."""
        for whole in (self.delta, self.conv_tail, self.ngram_tail):
            yield whole[:, slot]
        for cells in (*heads, self.raw):
            yield cells[:, slot, :rows]
        yield self.pooled[:, slot, : rows // self.sizes.ratio]
        yield self.history[slot]
