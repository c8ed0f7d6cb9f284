"""A model's weights packed on one device, once: see `Weights`. Vectors stay in main memory until a program takes them.

Knows which tensors are wanted, what was placed already and where tables may lie; how a tensor is packed is in
`fast/packing.py`. Main memory holds one matrix or two batches of experts at a time on their way to a GPU.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch

from strata.errors import EngineError
from strata.experts.arena import load_arena
from strata.experts.packing import PackingThreads
from strata.experts.store import ExpertStore
from strata.experts.store_filling import fill_layer
from strata.experts.uploading import Staging, upload_experts
from strata.kernels.expert_rows.work import ExpertBlobs
from strata.models.blocks.linear import Weight
from strata.models.blocks.moe import Experts
from strata.models.device.held import (
    DeviceExperts,
    DeviceMatrices,
    DeviceTable,
    FileTable,
    join_neighbours,
    moved,
    order_by_block,
    stack,
)
from strata.models.fast.packing import PackedTensor, experts_of, is_matrix, pack_tensor, packed_bytes, take_rows
from strata.models.weights import TableGather, TakenRows
from strata.quant.packed import PackedMatrix
from strata.quant.packer import Packer, Scratch, fresh_memory
from strata.types import ProgressCallback
from strata.weights.source import WeightSource
from strata.weights.table_files import stored_table

_STAGE = "loading the model"
MOST_TABLE_BYTES = 1 << 30  # a larger n-gram table stays in main memory, where the device reads single rows of it


class DeviceWeights:
    """See `Weights`."""

    dtype = torch.float32

    def __init__(
        self,
        source: WeightSource,
        names: Collection[str],
        device: torch.device,
        on_progress: ProgressCallback | None = None,
        most_table_bytes: int = MOST_TABLE_BYTES,
        threads: PackingThreads | None = None,
        store: ExpertStore | None = None,
        reads_tables: bool = False,
    ) -> None:
        """`names`: those of the source's tensors that may be asked for. threads: None makes some of its own.

        store: filled with the routed experts, layer by layer; None: all of them lie on the device. reads_tables: n-gram
        tables stay in their files, whatever their size.
        """
        self.device = device
        self._source = source
        self._names = names
        self._most_table_bytes = most_table_bytes
        self._held: dict[str, DeviceMatrices] = {}  # a tied head and a draft layer ask for a matrix again
        self._progress = _Progress(on_progress, self)
        self._staging, self._scratch = Staging(device), Scratch()
        self._threads = threads or PackingThreads()
        self._store = store
        self._reads_tables = reads_tables

    def names(self) -> Collection[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._source.shape(name))

    def values(self, name: str) -> torch.Tensor:
        return self._source.tensor(name, self.dtype).contiguous()

    def matrix(self, *parts: str | TakenRows) -> Weight:
        if len(parts) == 1 and isinstance(parts[0], str):
            return self._hold(parts[0])
        found = [matrix for part in parts for matrix in self._packed(part)]
        return DeviceMatrices(self._place(join_neighbours(found)))

    def table(self, name: str) -> TableGather:
        if name in self._held or not name.endswith(".ngram_embedding.weight"):
            return DeviceTable(self._hold(name).parts)
        if self._reads_tables:
            self._progress.advance(name)
            return FileTable(stored_table(self._source, name), partial(_rows_of, self._source, name))
        table = stack(self._pack(name, fresh_memory).parts)  # shards of one code
        self._progress.advance(name)
        if self.device.type == "cpu" or table.layout.total_bytes <= self._most_table_bytes:
            return DeviceTable((moved(table, self.device),))
        return DeviceTable((pinned(table),))

    def table_in_files(self, name: str) -> TableGather:
        """The same as `table`: where it lies on the way to a device was decided by a memory plan."""
        return self.table(name)

    def experts(self, prefix: str) -> Experts:
        layer, on_progress = experts_of(self._source, (prefix,)), self._progress.follow(prefix)
        if self._store is not None:
            index = self._store.index(prefix)
            fill_layer(self._store, index, layer, self._threads, self._staging, on_progress)
            return DeviceExperts(_blobs_in_store(self._store, index, self.device))
        if self.device.type == "cpu":
            memory = load_arena(layer, on_progress=on_progress).buffer
        else:
            memory = upload_experts(layer, prefix, self._staging, self._threads, on_progress)
        return DeviceExperts(ExpertBlobs(layer.layout(prefix), memory))

    def held_bytes(self, name: str) -> int:
        return packed_bytes(self._source, name)

    def _pack(self, name: str, memory: Callable[[int], torch.Tensor]) -> PackedTensor:
        pool = self._threads.pool
        return pack_tensor(self._source, name, None if pool is None else Packer(pool, memory))

    def _pack_to_place(self, name: str) -> PackedTensor:
        """Until `_place` has moved it; on the CPU, where it stays, it has memory of its own."""
        return self._pack(name, fresh_memory if self.device.type == "cpu" else self._scratch.take)

    def _packed(self, part: str | TakenRows) -> tuple[PackedMatrix, ...]:
        name = part if isinstance(part, str) else part.name
        packed = self._pack_to_place(name)
        assert packed.order is None  # only a matrix that has its input for itself stands in an order of its own
        self._progress.advance(name)
        return packed.parts if isinstance(part, str) else (take_rows(packed.parts, part.rows),)

    def _hold(self, name: str) -> DeviceMatrices:
        if name not in self._held:
            parts, order = order_by_block(self._pack_to_place(name))
            placed = self._place(join_neighbours(parts))
            self._held[name] = DeviceMatrices(placed, None if order is None else order.to(self.device))
            self._progress.advance(name)
        return self._held[name]

    def _place(self, parts: Sequence[PackedMatrix]) -> tuple[PackedMatrix, ...]:
        placed = tuple(moved(part, self.device) for part in parts)
        self._scratch.reset()
        return placed


def pinned(matrix: PackedMatrix) -> PackedMatrix:
    """The matrix with its pages locked where they are, until the process ends, so that a GPU reads them in place.

    Raises EngineError if the system does not lock so much memory.
    """
    for tensor in (matrix.codes, matrix.scales, matrix.super_scales, matrix.mins, matrix.super_mins):
        if tensor.numel():
            result = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)
            if int(result) != 0:
                raise EngineError(
                    f"the system does not pin the {matrix.layout.total_bytes / 2**30:.1f} GiB of an n-gram table "
                    f"(CUDA says {result}): raise the limit of locked memory (`ulimit -l unlimited`), or leave the "
                    'table in its files with ngram_table = "file"'
                )
    return matrix


def _rows_of(source: WeightSource, name: str, row_ids: torch.Tensor) -> torch.Tensor:
    return source.rows(name, row_ids, torch.float32)


def _blobs_in_store(store: ExpertStore, layer: int, device: torch.device) -> ExpertBlobs:
    """A layer's experts where they lie now; windows look that up in tables."""
    in_ram, seats = (torch.from_numpy(addresses[layer]) for addresses in (store.in_ram, store.resident))
    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    return ExpertBlobs(store.layout(layer), nothing, torch.where(in_ram != 0, in_ram, seats).to(device))


class _Progress:
    """How many bytes of the wanted matrices, tables and experts are in place; a tensor counts once."""

    def __init__(self, on_progress: ProgressCallback | None, weights: DeviceWeights) -> None:
        self._on_progress = on_progress
        self._sizes: dict[str, int] = {}
        self._done = self._total = 0
        if on_progress is not None:
            wanted = (name for name in weights.names() if is_matrix(weights.shape(name)))
            self._sizes = {name: weights.held_bytes(name) for name in wanted}
            self._total = sum(self._sizes.values())

    def advance(self, name: str) -> None:
        """A tensor is in place."""
        self._add(self._sizes.pop(name, 0))

    def follow(self, prefix: str) -> ProgressCallback | None:
        """For the packing of a layer's experts."""
        if self._on_progress is None:
            return None
        before, size = (
            self._done,
            sum(self._sizes.pop(f"{prefix}experts.{name}_proj", 0) for name in ("gate_up", "down")),
        )

        def on_expert(_: str, done: int, total: int) -> None:
            self._add(before + size * done // total - self._done)

        return on_expert

    def _add(self, size: int) -> None:
        if self._on_progress is not None and size:
            self._done = min(self._done + size, self._total)
            self._on_progress(_STAGE, self._done, self._total)
