"""An engine for the benches of joining prompts over a made-up model of the published shape: one card, or one a stage.

Knows how its parts are put together where no file is: weights are random, experts lie in tiers. Runs nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from strata.bench.join_model import JoinEngine
from strata.bench.join_modes import Served
from strata.bench.synthetic_model import scales_of
from strata.bench.tier_memory import TierMemory, model_in_tiers, seats_of
from strata.engine.chain import StageChain
from strata.engine.chunk_loading import make_chunks, warm_up_chunks
from strata.engine.device_windows import DeviceWindows
from strata.engine.engine import TokenEngine
from strata.engine.graphs import WindowGraphs
from strata.engine.local_stage import RunStage, on_device
from strata.engine.read_pace import ReadSteps
from strata.engine.stage import Stage, StageSizes
from strata.engine.stage_loading import make_point_room
from strata.engine.stage_model import GroupStage, StageModel
from strata.engine.tier_following import follow_windows
from strata.engine.tier_loading import LoadedTiers, make_tiers, ranks_of
from strata.engine.windows_ahead import WindowsAhead
from strata.experts.host_memory import Pinning
from strata.experts.sources import expert_layers
from strata.experts.store_plan import StoreLayer
from strata.models.device.describe import StagePlace, describe_parts
from strata.models.device.description import DeviceModel
from strata.models.device.layer_split import LayerSplit
from strata.models.device.reading.chunks import ChunkMemory
from strata.models.device.split_weights import SplitWeights
from strata.models.device.synthetic import SyntheticForm, SyntheticWeights
from strata.models.families import family_of
from strata.native.pool import Pool
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings
from strata.types import ProgressCallback
from strata.weights.presets import STYLES

POINTS_OF_A_SLOT = 6


@dataclass(frozen=True)
class MadeShape:
    """What is made, and where."""

    config: dict[str, Any]  # config.json
    form: SyntheticForm
    is_popular: bool
    cache: int  # percent of each layer's experts that have a seat
    split: LayerSplit
    devices: tuple[torch.device, ...]  # of its stages
    slots: int
    context: int
    chunk_rows: int
    groups: int


@dataclass(frozen=True)
class _Part:
    """One stage's model, and who has its experts."""

    description: DeviceModel
    loaded: LoadedTiers


@contextmanager
def made_engine(
    shape: MadeShape, settings: EngineSettings, threads: int, on_progress: ProgressCallback | None = None
) -> Iterator[JoinEngine]:
    """The engine; behind it nothing is held. Raises ModelError if main memory has no room for the experts."""
    with Pool(threads) as pool:
        memories = _memories(shape, threads, on_progress)
        parts, per_row = _parts(shape, memories, pool)
        try:
            yield _engine(shape, settings, parts, per_row)
        finally:
            for part in parts:
                part.loaded.tiers.stop()  # whatever is in flight ends
                if part.description.device.type == "cuda":
                    torch.cuda.synchronize(part.description.device)
                part.loaded.tiers.close()


def _memories(shape: MadeShape, threads: int, on_progress: ProgressCallback | None) -> list[TierMemory]:
    """Main memory for the experts of each stage, with none in it."""
    family = family_of(shape.config)
    shapes = family.expected_tensors(family.parse_config(shape.config))
    weights = SyntheticWeights(shapes, STYLES[family.name], torch.device("cpu"), shape.form)
    prefixes = expert_layers(shapes)
    experts = shapes[f"{prefixes[0]}experts.down_proj"][0]
    found = []
    for number, device in enumerate(shape.devices):
        own = [
            StoreLayer(each, weights.blob_layout(each))
            for each in prefixes
            if shape.split.stage_of_part(each) == number
        ]
        with on_device(device):
            found.append(TierMemory.take(tuple(own), experts, device, threads, on_progress))
    return found


def _parts(shape: MadeShape, memories: Sequence[TierMemory], pool: Pool) -> tuple[list[_Part], int]:
    """Weights on their devices and experts in main memory; and how many a row takes in all layers."""
    family = family_of(shape.config)
    config = family.parse_config(shape.config)
    shapes, style = family.expected_tensors(config), STYLES[family.name]
    scales = scales_of(shape.config) if shape.is_popular else None
    weights = [SyntheticWeights(shapes, style, memory.device, shape.form, scales, memory.put) for memory in memories]
    built: Any = family.build(config, SplitWeights(shape.split, weights))
    described = describe_parts(built, shape.split, [StagePlace(device) for device in shape.devices])
    found = []
    for description, memory in zip(described, memories, strict=True):
        with on_device(memory.device):
            nobody = np.zeros((len(memory.layers), memory.experts), np.int64)
            store = memory.store(seats_of(nobody, shape.cache))
            tiers = make_tiers(store, ranks_of(built), memory.device, pool, groups=shape.groups)
            found.append(_Part(model_in_tiers(description, tiers, memory), LoadedTiers(store, tiers, pool)))
    return found, built.experts_per_row


def _engine(shape: MadeShape, settings: EngineSettings, parts: Sequence[_Part], experts_per_row: int) -> JoinEngine:
    sizes = StageSizes(shape.slots, shape.context, kv_kind=CellKind(settings.kv_kind))
    made = [_stages(part, sizes, shape.groups) for part in parts]
    chunks = [_chunks(part, stages[0], shape.chunk_rows) for part, (stages, _) in zip(parts, made, strict=True)]
    first, *others = [_group(made, group) for group in range(shape.groups)]
    config = family_of(shape.config).parse_config(shape.config)
    steps = ReadSteps.of(settings)
    model = StageModel(first.stage, first.run, config, experts_per_row, chunks[0], steps, others, chunks[1:])
    for part, (stages, _) in zip(parts, made, strict=True):
        streams = model.roads.beside_main(stages[0].device)
        follow_windows(part.loaded, stages[0], settings, streams)
    is_gpu = shape.devices[0].type == "cuda"
    pinning = Pinning.cuda() if is_gpu else None
    points = make_point_room(model.slots, POINTS_OF_A_SLOT * shape.slots * model.slots.point_bytes, pinning)
    if model.reads is not None:
        model.reads.make_room(1, pinning)
    ahead = [WindowsAhead(DeviceWindows(model, group)) for group in range(shape.groups)]
    engine = TokenEngine(model, settings, ahead=ahead, points=points)
    served = Served(shape.slots, engine.chunk_rows, shape.groups, shape.split.stages > 1 and shape.groups > 1)
    name = f"{shape.split.layers} layers of the published shape, {shape.cache} % of the experts with a seat"
    where = torch.cuda.get_device_name() if is_gpu else "cpu"
    return JoinEngine(engine, served, settings, name, where)


def _stages(part: _Part, sizes: StageSizes, groups: int) -> tuple[list[Stage], list[RunStage]]:
    """One for each group of slots, beside the first, and what runs it."""
    stages: list[Stage] = []
    with on_device(part.description.device):
        for group in range(groups):
            description = part.description.for_group(group) if group else part.description
            stages.append(Stage(description, sizes, beside=stages[0] if group else None))
        return stages, [WindowGraphs(stage).run for stage in stages]


def _chunks(part: _Part, stage: Stage, rows: int) -> ChunkMemory:
    with on_device(stage.device):
        chunks = make_chunks(stage, rows, part.loaded.store, part.loaded.pool)
        if stage.device.type == "cuda":
            warm_up_chunks(chunks)
        return chunks


def _group(made: Sequence[tuple[list[Stage], list[RunStage]]], group: int) -> GroupStage:
    """The stage of a group, or the chain of all its stages."""
    if len(made) == 1:
        return GroupStage(made[0][0][group], made[0][1][group])
    chain = StageChain.of([stages[group] for stages, _ in made], [runs[group] for _, runs in made], group)
    return GroupStage(chain, chain.run)
