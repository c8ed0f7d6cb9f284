"""Packed matrices, tables and experts as blocks use them: multiplied, looked up and computed by the C++ library.

Windows and reads of the library read the same bytes; see `Weight`, `TableGather` and `Experts`. Knows no file.
"""

import ctypes
from collections.abc import Sequence

import torch

from strata.errors import EngineError
from strata.experts.arena import Arena
from strata.experts.pool import ExpertPool, group_by_expert, native_layout
from strata.native import mixers
from strata.native.matrices import NativeMatrix, matrices_rows
from strata.native.pool import Pool


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

    def __init__(self, pool: Pool, arena: Arena, layer: str) -> None:
        self._arena = arena
        self._layer = layer
        found = arena.layers[layer]
        self._layout = native_layout(found.layout)
        addresses = (arena.address(layer, expert) for expert in range(found.count))
        self._blobs = (ctypes.c_void_p * found.count)(*addresses)
        self._pool = ExpertPool(pool, found.layout)

    @property
    def layout_address(self) -> int:
        """Of the layer's `abi.ExpertLayout`; this object must stay alive."""
        return ctypes.addressof(self._layout)

    @property
    def blobs_address(self) -> int:
        """Of the array of the experts' addresses."""
        return ctypes.addressof(self._blobs)

    def rows(self, x: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden], ids [rows, ranks] -> [rows, ranks, hidden]; every expert has all of its rows at once."""
        chosen = {expert: self._arena.blob_bytes(self._layer, expert) for expert in expert_ids.unique().tolist()}
        out = x.new_empty(*expert_ids.shape, x.shape[1])
        self._pool.compute(group_by_expert(expert_ids, chosen), x.contiguous(), out)
        return out
