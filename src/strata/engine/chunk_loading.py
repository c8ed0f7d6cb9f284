"""From a stage to the memory in which its prompts pass in chunks: who gives experts, and that all kernels are there.

Knows where experts lie; knows no request. What a chunk takes of a card is planned in `reader_room.py`.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from strata.engine.stage import Stage
from strata.errors import EngineError, WeightFileError
from strata.experts.expert_files import ReadCache
from strata.experts.feed import ExpertBatch, ExpertFeed, ExpertsAtHand, ResidentExperts
from strata.experts.store import ExpertStore
from strata.experts.streaming import TILE_EXPERTS, StreamedExperts
from strata.experts.streams import streams_of
from strata.kernels.roads import is_reference_on
from strata.models.device.description import AttentionMixer, DeviceModel, SparseMlp
from strata.models.device.launches import Launch
from strata.models.device.reading.chunks import GRID, ChunkMemory, ChunkPlace
from strata.models.device.reading.mlps import GROUP_STEP
from strata.native.pool import Pool

COMPILED_ROWS = (1, 64, 128, 192)  # dense products have forms for up to 32, 64 and 128 rows, and for more
PASSED_ROWS = 130


@dataclass(frozen=True)
class _Files:
    """See `ExpertFiles`."""

    reads: ReadCache
    pool: Pool  # whose threads work for nobody else between two windows

    def read(self, layer: int, experts: Sequence[int], blobs: Sequence[torch.Tensor]) -> None:
        """See `ExpertFiles`."""
        try:
            self.reads.fill(self.pool, layer, experts, blobs)
        except WeightFileError as reason:
            raise EngineError(str(reason)) from reason


def make_chunks(stage: Stage, capacity: int, store: ExpertStore | None = None, pool: Pool | None = None) -> ChunkMemory:
    """Memory for chunks of up to `capacity` rows. store: where experts in tiers lie; None: all are on the device.

    pool: reads those that stay in files. Raises torch's error if the device has no such memory.
    """
    return ChunkMemory(stage.model, stage.state, stage.rotation, expert_feed(stage.model, store, pool), capacity)


def expert_feed(model: DeviceModel, store: ExpertStore | None, pool: Pool | None = None) -> ExpertFeed:
    """Who gives a chunk the experts of each layer."""
    if store is not None:
        assert model.tiers is not None, "a store belongs to tiers"
        files = None if store.reads is None or pool is None else _Files(store.reads, pool)
        return StreamedExperts(store, model.tiers, streams_of(model.device), model.device, files)
    sparse = [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMlp)]
    return ResidentExperts([_addresses(mlp) for mlp in sparse])


def warm_up_chunks(chunks: ChunkMemory) -> None:
    """Compile and load every kernel that a chunk needs; no slot holds a conversation yet, and slot 0 is reset after it.

    Where the torch road computes there is nothing to compile.
    """
    if is_reference_on(chunks.model.device):
        return
    tables = chunks.model.tables
    with nullcontext() if tables is None else tables.asked_by_launches():  # or a launch would wait for who sleeps
        for launch in compiling_launches(chunks):
            launch.run()
        for launch in chunks.launches(min(chunks.capacity, chunks.state.cells), _EveryForm(chunks.model)):
            if launch.step == GROUP_STEP:  # sorts in memory that torch keeps from now on
                launch.run()
                break
    rows = min(PASSED_ROWS, chunks.capacity, chunks.state.cells)
    chunk = chunks.begin(ChunkPlace(0, 0, rows, counts=True), torch.zeros(rows, dtype=torch.int64))
    try:
        while not chunk.is_through:
            chunk.step(lambda launch: launch.run())
    finally:
        chunk.end()
    chunks.state.reset(0)


def compiling_launches(chunks: ChunkMemory) -> Iterator[Launch]:
    """Launches of every form of every kernel, in any order, for chunks that nothing has passed through.

    No place of an expert is listed meanwhile, so no address of one is looked at; state of slot 0 is moved.
    """
    last = COMPILED_ROWS[-1]
    for rows, position in dict.fromkeys([*((rows, 0) for rows in COMPILED_ROWS), (last, chosen_from(chunks.model))]):
        if rows <= chunks.capacity and position + rows <= chunks.state.cells:
            launches = chunks.launches(rows, _EveryForm(chunks.model), position)
            yield from (launch for launch in launches if launch.step != GROUP_STEP)
    yield from chunks.entries(min(COMPILED_ROWS[1], chunks.capacity, chunks.state.cells))


def chosen_from(model: DeviceModel) -> int:
    """Where rows lie of which some see every cell and others choose; 0 where none ever chooses."""
    mixers = [layer.mixer for layer in model.layers if isinstance(layer.mixer, AttentionMixer)]
    indexers = [mixer.layer.shape.indexer for mixer in mixers]
    return max((max(0, each.dense_positions - GRID) for each in indexers if each is not None), default=0)


def compiling_context(model: DeviceModel) -> int:
    """Rows of a slot in which `compiling_launches` finds every form of every kernel."""
    return chosen_from(model) + COMPILED_ROWS[-1]


class _EveryForm(ExpertsAtHand):
    """Batches of every size for which the kernels have a form of their own; nobody's addresses."""

    def __init__(self, model: DeviceModel) -> None:
        self._experts = [layer.mlp.router.shape[0] for layer in model.layers if isinstance(layer.mlp, SparseMlp)]
        self._device = model.device

    def batches(self, layer: int, needed: Collection[int] | None) -> Sequence[ExpertBatch]:
        """See `ExpertFeed`."""
        experts = self._experts[layer]
        nowhere = torch.zeros(experts, dtype=torch.int64, device=self._device)
        count, found = min(TILE_EXPERTS, experts), []
        while count <= experts:
            found.append(ExpertBatch(nowhere, torch.arange(count, dtype=torch.int32, device=self._device)))
            count = experts if count < experts < 2 * count else 2 * count
        return found


def _addresses(mlp: SparseMlp) -> torch.Tensor:
    """int64 [experts] on the device."""
    if mlp.blobs.addresses is not None:
        return mlp.blobs.addresses
    first, stride = mlp.blobs.memory.data_ptr(), mlp.blobs.stride
    numbers = torch.arange(mlp.blobs.seats, dtype=torch.int64, device=mlp.blobs.memory.device)
    return first + stride * numbers
