"""A model on the CPU: what it takes, in which form its weights are held there, and reading them.

Knows families, files and the C++ library; knows no slot and no card.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch

from strata.engine.checkpoint_budget import checkpoints_on_cpu
from strata.engine.cpu_memory import CpuNeeds
from strata.engine.device_needs import blobs_of, most_asked
from strata.engine.failures import is_out_of_memory
from strata.engine.parked_budget import asked_on_cpu
from strata.engine.placement import full_slot_bytes
from strata.engine.tier_placement import CONTEXT_UNASKED
from strata.errors import EngineError, SettingsError
from strata.experts.expert_files import filing_problem
from strata.experts.sources import expert_layers
from strata.hardware import MemoryFacts, read_cpu, read_memory
from strata.models.base import LanguageModel
from strata.models.families import Family
from strata.models.fast.attach import attach_fast_windows
from strata.models.fast.loading import PackedWeights, open_packed_weights
from strata.models.fast.packing import held_bytes_packed
from strata.models.needs import Part, StateBytes, part_of, place_in_ram, reading_bytes, state_bytes
from strata.models.qwen4_exp import RESIDENT_TABLE_BYTES
from strata.native import library
from strata.native.pool import Pool
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings
from strata.types import ProgressCallback
from strata.weights.opening import ModelSource

# Below this width a row is too little work to share: at 256, on two cores with other work, a second thread read prompts
# three to seven times slower and decoded no faster (docs/log.md, 2026-11-30).
NARROW_HIDDEN = 1024
ALL_IN_RAM = "on the CPU all keys and values lie in main memory"


def fitting_threads(hidden_size: int) -> int:
    """Threads for a model of this width where the user named none."""
    return 1 if hidden_size < NARROW_HIDDEN else read_cpu().usable_cores


def cpu_needs(source: ModelSource, family: Family, config: Any, settings: EngineSettings) -> CpuNeeds:
    """What a model takes on the CPU; config: the family's. Reads no weight."""
    shapes, max_position = wanted_shapes(family, config, settings), config.max_position
    sizes = held_sizes(source, shapes, settings)
    working = reading_bytes(source.config, min(settings.cpu_chunk_rows, max_position))
    layers = expert_layers(shapes)
    routed = {name: shape for name, shape in shapes.items() if name.startswith(layers) and ".experts." in name}
    context = min(settings.context or CONTEXT_UNASKED, max_position)
    state = cpu_state_bytes(source, settings)
    checkpoints = checkpoints_on_cpu(state, settings, read_memory())
    slot_bytes = full_slot_bytes(state, context, checkpoints.per_slot)
    parked = asked_on_cpu(settings.parked_gib, read_memory())
    return CpuNeeds(
        whole=place_in_ram(sizes, 0, RESIDENT_TABLE_BYTES, working).ram_bytes,
        experts=sum(sizes[name] for name in routed),
        least_read=most_asked(source.config, routed) * max((size for size, _ in blobs_of(sizes, routed)), default=0),
        conversations=(settings.slots or 1) * slot_bytes + checkpoints.fixed + parked,
        held_as=held_as(settings),
        filing_problem=filing_problem(source, layers) if is_packed(settings) else "only the C++ library does that",
    )


def check_cpu_settings(source: ModelSource, settings: EngineSettings, memory: MemoryFacts, why: str) -> None:
    """Refuse what a model cannot do with on the CPU. why: it runs there. Raises SettingsError."""
    require_no_pool(settings, why)
    checkpoints_on_cpu(cpu_state_bytes(source, settings), settings, memory)
    asked_on_cpu(settings.parked_gib, memory)


def require_no_pool(settings: EngineSettings, why: str) -> None:
    """Raises SettingsError if a card was to keep a part of the keys and values."""
    if settings.kv_resident:
        raise SettingsError(f"setting kv_resident: {settings.kv_resident:,} does not work: {why}; 0 does")


def cpu_state_bytes(source: ModelSource, settings: EngineSettings) -> StateBytes:
    """Of one slot on the CPU."""
    return state_bytes(source.config, getattr(torch, settings.dtype).itemsize, CellKind(settings.kv_kind))


def held_sizes(source: ModelSource, shapes: Mapping[str, tuple[int, ...]], settings: EngineSettings) -> dict[str, int]:
    """Bytes in memory of a model's tensors under these settings."""
    if is_packed(settings):
        return held_bytes_packed(source, shapes)
    bytes_each = getattr(torch, settings.dtype).itemsize
    return {name: math.prod(shape) * bytes_each for name, shape in shapes.items()}


def held_as(settings: EngineSettings) -> str:
    """In which type weights are held, in words."""
    return "the files' types" if is_packed(settings) else settings.dtype


def is_packed(settings: EngineSettings) -> bool:
    """Whether the C++ library holds and computes the model, in the codes of its files."""
    return settings.cpu_path == "native" and settings.dtype == "float32" and library.is_available()


def wanted_names(names: Collection[str], *, with_drafts: bool) -> list[str]:
    """The tensors that are read: the draft layer's only if it is used."""
    return [name for name in names if with_drafts or part_of(name) is not Part.MTP]


def wanted_shapes(family: Family, config: Any, settings: EngineSettings) -> dict[str, tuple[int, ...]]:
    """Of the tensors that a model needs under these settings. config: the family's."""
    shapes = family.expected_tensors(config)
    return {name: shapes[name] for name in wanted_names(shapes, with_drafts=settings.drafts > 0)}


def load_weights(
    source: ModelSource,
    family: Family,
    config: Any,
    settings: EngineSettings,
    cache_bytes: int | None,
    on_progress: ProgressCallback | None,
) -> LanguageModel:
    """Read what the family wants, packed for the C++ library or as tensors in the compute dtype.

    cache_bytes: of main memory for experts that stay in the model's file; None: all are read. Raises EngineError if
    memory runs out.
    """
    names = wanted_names(source.names(), with_drafts=settings.drafts > 0)
    try:
        if is_packed(settings):
            pool = Pool(settings.threads or fitting_threads(config.hidden_size))
            weights = open_packed_weights(source, names, pool, on_progress, cache_bytes)
            return _load_packed(family, config, weights)
        return _load_tensors(family, config, source, names, getattr(torch, settings.dtype), on_progress)
    except (MemoryError, RuntimeError) as failure:
        if not is_out_of_memory(failure):
            raise
        raise EngineError(
            "out of memory while the weights were read: `strata inspect` shows what takes how much"
        ) from failure


class _ChosenTensors:
    """A WeightSource that shows only some of another's tensors; what it hides is absent for a family."""

    def __init__(self, source: ModelSource, names: Collection[str]) -> None:
        self._names = names
        self.shape, self.tensor, self.rows = source.shape, source.tensor, source.rows

    def names(self) -> Collection[str]:
        return self._names


def _load_packed(family: Family, config: Any, weights: PackedWeights) -> LanguageModel:
    model: Any = family.build(config, weights)
    model.reads = weights.reads
    weights.report_progress(None)
    attach_fast_windows(model, weights.pool)
    return model


def _load_tensors(
    family: Family,
    config: Any,
    source: ModelSource,
    names: Collection[str],
    dtype: torch.dtype,
    on_progress: ProgressCallback | None,
) -> LanguageModel:
    if on_progress is not None:

        def report(done: int, total: int, _: str) -> None:
            on_progress("loading the model", min(done, total), total)  # a family may read a tensor twice

        source.report_progress(set(family.expected_tensors(config)).intersection(names), report)
    try:
        return family.load(config, _ChosenTensors(source, names), dtype)
    finally:
        source.report_progress((), None)
