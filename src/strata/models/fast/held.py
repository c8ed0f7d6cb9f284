"""Packed matrices, tables and experts as blocks use them: multiplied, looked up and computed by the C++ library.

Windows and reads of the library read the same bytes; see `Weight`, `TableGather` and `Experts`. Knows no file.
"""

import ctypes
from collections.abc import Sequence

import torch

from strata.errors import EngineError
from strata.experts.arena import Arena
from strata.experts.expert_files import ReadCache
from strata.experts.pool import ExpertPool, group_by_expert, native_layout
from strata.native import mixers
from strata.native.matrices import NativeMatrix, matrices_rows
from strata.native.pool import Pool
from strata.quant.layout import BlobLayout


class PackedMatrices:
    """Matrices under one another that share their input; see `HeldMatrix`."""

    dtype = torch.float32

    def __init__(self, pool: Pool, parts: Sequence[NativeMatrix], order: torch.Tensor | None = None) -> None:
        """`order` int32 [columns]: column j of the parts belongs to input order[j]; None: as they stand."""
        if len(parts) > mixers.MOST_PARTS:
            raise EngineError(f"{len(parts)} matrices share an input; the native library takes {mixers.MOST_PARTS}")
        self._pool = pool
        self._parts = tuple(parts)
        self._order = order
        self.shape = sum(part.rows for part in parts), parts[0].columns

    @property
    def native(self) -> mixers.Matrices:
        """As windows take them; this object must stay alive."""
        group = mixers.Matrices(len(self._parts), self.shape[0])
        for index, part in enumerate(self._parts):
            group.parts[index] = ctypes.addressof(part.struct)
        group.order = None if self._order is None else self._order.data_ptr()
        return group

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] -> [rows, out]."""
        if self._order is not None:
            x = x[:, self._order.long()]
        y = x.new_empty(x.shape[0], self.shape[0])
        matrices_rows(self._pool, self._parts, x, y.split([part.rows for part in self._parts], dim=1))
        return y


class PackedTable:
    """A table whose rows are decoded when they are asked for; see `TableGather`."""

    def __init__(self, matrices: PackedMatrices) -> None:
        self.matrices = matrices

    def __call__(self, row_ids: torch.Tensor) -> torch.Tensor:
        """row_ids [n] int64 -> [n, width]."""
        rows = torch.empty(row_ids.shape[0], self.matrices.shape[1])
        mixers.table_rows(self.matrices.native, row_ids.contiguous(), rows)
        return rows


class PackedExperts:
    """One layer's experts in an arena; see `Experts`."""

    reads: ReadCache | None = None  # of experts that lie in no arena, as its layer `file_layer`
    file_layer = 0

    def __init__(self, pool: Pool, arena: Arena, layer: str) -> None:
        self._arena = arena
        self._layer = layer
        found = arena.layers[layer]
        self._hold(pool, found.layout, [arena.address(layer, expert) for expert in range(found.count)])

    @property
    def layout_address(self) -> int:
        """Of the layer's `abi.ExpertLayout`; this object must stay alive."""
        return ctypes.addressof(self._layout)

    @property
    def blobs_address(self) -> int:
        """Of the array of the experts' addresses, 0 for those that are read from files."""
        return ctypes.addressof(self._addresses)

    def rows(self, x: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden], ids [rows, ranks] -> [rows, ranks, hidden]; every expert has all of its rows at once."""
        chosen = self._blobs(expert_ids.unique().tolist())
        out = x.new_empty(*expert_ids.shape, x.shape[1])
        self._experts.compute(group_by_expert(expert_ids, chosen), x.contiguous(), out)
        return out

    def _blobs(self, experts: Sequence[int]) -> dict[int, torch.Tensor]:
        return {expert: self._arena.blob_bytes(self._layer, expert) for expert in experts}

    def _hold(self, pool: Pool, layout: BlobLayout, addresses: Sequence[int]) -> None:
        self._pool = pool
        self._layout = native_layout(layout)
        self._addresses = (ctypes.c_void_p * len(addresses))(*(address or None for address in addresses))
        self._experts = ExpertPool(pool, layout)


class FiledExperts(PackedExperts):
    """One layer's experts in a model's files. Windows of the library read them through the cache; `rows` reads each of
    them anew."""

    def __init__(self, pool: Pool, reads: ReadCache, layer: int) -> None:
        self.reads: ReadCache = reads
        self.file_layer = layer
        filed = reads.layers[layer]
        self._blob_bytes = filed.layout.total_bytes
        self._hold(pool, filed.layout, [0] * filed.count)

    def _blobs(self, experts: Sequence[int]) -> dict[int, torch.Tensor]:
        room = torch.empty(len(experts), self._blob_bytes, dtype=torch.uint8)
        self.reads.fill(self._pool, self.file_layer, experts, room.unbind())
        return dict(zip(experts, room, strict=True))
