"""The composition root: from a model's directory to a tokenizer and an engine that belong together.

The only file that knows every part and wires them; no part is made anywhere else. Decides nothing that a part could.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strata import models_shipped
from strata.build_rank import lead_ranks
from strata.engine.checkpoint_budget import checkpoints_on_cpu, point_budget
from strata.engine.compile_share import CompileRequest
from strata.engine.cpu_loading import (
    ALL_IN_RAM,
    cpu_needs,
    cpu_state_bytes,
    fitting_threads,
    load_weights,
    require_no_pool,
    wanted_names,
    wanted_shapes,
)
from strata.engine.cpu_memory import plan_cpu_memory
from strata.engine.device_choice import is_worth_telling
from strata.engine.device_plans import PlannedDevices, plan_devices
from strata.engine.device_windows import windows_ahead
from strata.engine.engine import TokenEngine
from strata.engine.memory_plan import MemoryPlan
from strata.engine.messages import ModelFacts
from strata.engine.parked_budget import asked_on_cpu, parking_on_cpu
from strata.engine.part_loading import groups_of
from strata.engine.placement import full_slot_bytes, slots_that_fit
from strata.engine.points import PointBudget
from strata.engine.precompile import compile_ahead, mark_compiled, marker_of
from strata.engine.read_pace import ReadSteps
from strata.engine.slot_costs import cost_words, slot_costs
from strata.engine.stage_devices import StageDevice, is_staged
from strata.engine.stage_following import follow_stages
from strata.engine.stage_loading import Card, LoadedStage, ModelFiles, load_stages
from strata.engine.stage_plans import StagePlans
from strata.engine.steps import ParkingSpace
from strata.engine.tier_loading import TierWishes
from strata.engine.tier_profile import open_profile
from strata.engine.windows_ahead import WindowsAhead
from strata.errors import ConfigError, ModelError, SettingsError
from strata.experts.sources import expert_layers
from strata.hardware import GpuFacts, read_gpu_driver, read_gpus, read_memory, why_no_gpu
from strata.kernels.compiled import use_cache
from strata.kernels.roads import force_reference, use_dependent_launches
from strata.models.base import LanguageModel
from strata.models.cell_kind import with_cells
from strata.models.families import Family, family_of
from strata.models.needs import Part
from strata.quant.cell_codes import CellKind
from strata.sampling.grammar_compile import GrammarFactory
from strata.settings import EngineSettings, kernel_cache_folder, profiles_folder
from strata.text.grammar_vocabulary import grammar_vocabulary
from strata.text.loading import tokenizer_files_of, tokenizer_of
from strata.text.recommended_sampling import recommended_sampling_of
from strata.text.text_facts import end_ids_problem
from strata.text.tokenizer import Tokenizer
from strata.types import ProgressCallback
from strata.weights.fit import require_shapes
from strata.weights.opening import ModelSource, has_weights, open_model

_OF_TIERS = ("cache_gib", "resident", "pcie_share", "expert_wait", "expert_swaps", "expert_profile")


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to answer."""

    directory: Path
    tokenizer: Tokenizer
    engine: TokenEngine
    end_of_text_ids: frozenset[int]
    notices: tuple[str, ...]  # sentences for the user about what was left out
    slots: int  # conversations that run at once
    slot_bytes: int  # what a full one takes
    groups: int  # of slots, whose windows run one beside the other
    is_piped: bool  # whether these pass several stages
    slot_costs: str  # in words: what slots cost by place, and how many fit; empty on the CPU


def load_model(
    directory: Path | None, settings: EngineSettings, on_progress: ProgressCallback | None = None
) -> LoadedModel:
    """Load a model directory or GGUF file; the shipped model if none is given. Cheap checks come before weights.

    Sets torch's number of threads for the whole process. Raises ModelError, TextError or SettingsError, and EngineError
    if memory runs out.
    """
    if directory is None:
        directory = models_shipped.default_path()
        if not has_weights(directory):
            raise ModelError("this copy of strata ships no model: name one with --model")
    source = open_model(directory, settings.quantize)
    family = family_of(source.config)
    config = with_cells(family.parse_config(source.config), CellKind(settings.kv_kind))
    require_shapes(source, wanted_shapes(family, config, settings))
    _check_context(settings, config.max_position)
    tokenizer = tokenizer_of(source)
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise ConfigError(
            f"{directory}: the tokenizer has {tokenizer.vocabulary_size:,} ids, the model's vocabulary "
            f"{config.vocabulary_size:,}: they do not belong together"
        )
    wanted = _Wanted(directory, family, config, source, settings, on_progress)
    if settings.stages:
        placed = _on_ranks(wanted)
        notices = source.notices + placed.notices
    else:
        chosen = choose_device(source, settings)
        placed = _on_cpu(wanted) if chosen.planned is None else _on_devices(wanted, chosen)
        notices = source.notices + chosen.notices + placed.notices
    ends = tokenizer.eos_token_ids | frozenset(config.end_of_text_ids)
    if problem := end_ids_problem(ends, config.vocabulary_size):
        notices += (problem,)
    grammars = GrammarFactory(lambda: grammar_vocabulary(tokenizer, ends, config.vocabulary_size))
    return LoadedModel(
        directory=directory,
        tokenizer=tokenizer,
        engine=TokenEngine(placed.model, settings, grammars, placed.ahead, placed.points, placed.parking),
        end_of_text_ids=ends,
        notices=notices,
        slots=placed.slots,
        slot_bytes=placed.slot_bytes,
        groups=placed.groups,
        is_piped=placed.is_piped,
        slot_costs=placed.slot_costs,
    )


@dataclass(frozen=True)
class PlannedCard:
    """A card of this PC and what goes onto it."""

    index: int
    facts: GpuFacts
    plan: MemoryPlan


@dataclass(frozen=True)
class DeviceChoice:
    """Where a model runs: on devices as planned, or on the CPU, and what to tell of it."""

    planned: PlannedDevices | None = None  # None: on the CPU
    notices: tuple[str, ...] = ()

    @property
    def cards(self) -> tuple[PlannedCard, ...]:
        """Of all stages that are computed by one."""
        if self.planned is None or self.planned.plans is None:
            return ()
        found = zip(self.planned.devices, self.planned.plans.plans, strict=True)
        return tuple(
            PlannedCard(device.card, device.facts, plan)
            for device, plan in found
            if device.card is not None and device.facts is not None
        )

    @property
    def card(self) -> PlannedCard | None:
        """The first of them."""
        return self.cards[0] if self.cards else None


def choose_device(source: ModelSource, settings: EngineSettings) -> DeviceChoice:
    """As the settings `device`, `devices` and `layer_split` say; reads no weight.

    Raises SettingsError or ModelError if it must be a card, or stages, and none of this PC will do.
    """
    if settings.device == "cpu" and not is_staged(settings):
        require_no_pool(settings, ALL_IN_RAM)
        return DeviceChoice()
    gpus = read_gpus()
    trouble = None if gpus else why_no_gpu()
    found = plan_devices(source, settings, gpus, read_memory(), trouble, lambda: profiled_heat(source, settings))
    if found.is_used:
        return DeviceChoice(found)
    if found.plans is not None and (is_staged(settings) or settings.device == "cuda"):
        raise ModelError(str(found.problem))
    if settings.device == "cuda":
        raise SettingsError(f"setting device: cuda does not work: {found.problem}; cpu works")
    require_no_pool(settings, f"it is for a card, and the model runs on none: {found.problem}")
    if not is_worth_telling(gpus, read_gpu_driver()):
        return DeviceChoice()
    return DeviceChoice(notices=(f"the model runs on the CPU and not on a card: {found.problem}",))


def profiled_heat(source: ModelSource, settings: EngineSettings) -> NDArray[np.float32] | None:
    """What the profile of a model says of its experts; None: there is none, or there are no experts."""
    names = wanted_names(source.names(), with_drafts=False)
    if not expert_layers(names):
        return None
    return open_profile(source, names, settings.expert_profile, profiles_folder()).heat


@dataclass(frozen=True)
class _Wanted:
    """What is to be loaded, and under which settings."""

    directory: Path
    family: Family
    config: Any
    source: ModelSource
    settings: EngineSettings
    on_progress: ProgressCallback | None

    def set_threads(self) -> None:
        """Of torch, for the whole process."""
        torch.set_num_threads(self.settings.threads or fitting_threads(self.config.hidden_size))


@dataclass(frozen=True)
class _Placed:
    """A model where it runs, with room for so many conversations."""

    model: LanguageModel
    ahead: Sequence[WindowsAhead]  # one for each group of slots; none where the host chooses all tokens
    slots: int
    slot_bytes: int
    points: PointBudget
    parking: ParkingSpace
    notices: tuple[str, ...] = ()
    groups: int = 1
    is_piped: bool = False
    slot_costs: str = ""


def _on_cpu(wanted: _Wanted) -> _Placed:
    settings = wanted.settings
    needs = cpu_needs(wanted.source, wanted.family, wanted.config, settings)
    cache_bytes = plan_cpu_memory(needs, read_memory(), settings.ram_gib, is_filed=settings.mmap)
    wanted.set_threads()
    model = load_weights(wanted.source, wanted.family, wanted.config, settings, cache_bytes, wanted.on_progress)
    notices: tuple[str, ...] = ()
    if settings.drafts and model.draft_head is None:
        notices += (f"drafts = {settings.drafts} changes nothing: this model has no draft layer",)
    if settings.verify_profile:
        notices += ("verify_profile changes nothing: only a card's windows are timed step by step",)
    of_cards = ("vram_gib", *(() if cache_bytes else ("ram_gib",)), "ngram_table", "groups", *_OF_TIERS)
    notices += _changing_nothing(of_cards, settings, "the model runs on the CPU")
    if cache_bytes is None:
        notices += _changing_nothing(("mmap",), settings, "all experts lie in memory")
    context = min(settings.context or model.max_position, model.max_position)
    state = cpu_state_bytes(wanted.source, settings)
    checkpoints = checkpoints_on_cpu(state, settings, read_memory())
    slot_bytes = full_slot_bytes(state, context, checkpoints.per_slot)
    slots = settings.slots or 1  # for which the plan has room; experts that are read have all the rest
    if cache_bytes is None:
        free = read_memory().usable - checkpoints.fixed - asked_on_cpu(settings.parked_gib, read_memory())
        slots = slots_that_fit(settings.slots, slot_bytes, free, context)
    points = point_budget(checkpoints.at(slots, context), state.fixed, slots)
    taken = slots * slot_bytes + checkpoints.fixed if cache_bytes is None else None
    parking = parking_on_cpu(settings.parked_gib, read_memory(), taken, state, context)
    return _Placed(model, (), slots, slot_bytes, points, parking, notices)


def _on_devices(wanted: _Wanted, chosen: DeviceChoice) -> _Placed:
    settings, source, planned = wanted.settings, wanted.source, chosen.planned
    assert planned is not None and planned.plans is not None
    wanted.set_threads()
    force_reference(settings.gpu_path == "torch")
    use_dependent_launches(settings.dependent_launches)
    if chosen.cards:
        use_cache(kernel_cache_folder(settings))
    markers = _compile(wanted, chosen.cards) if settings.gpu_path == "triton" else ()
    names = wanted_names(source.names(), with_drafts=False)
    profile = None
    if planned.plans.has_tiers:
        profile = open_profile(source, names, settings.expert_profile, profiles_folder())
    wishes = TierWishes(None if profile is None else profile.heat, settings.threads, _waits_in_stream(settings))
    loaded = load_stages(
        ModelFiles(wanted.family, wanted.config, source, names),
        cards_of(planned.devices),
        planned.plans,
        wanted.on_progress,
        is_profiled=settings.verify_profile,
        wishes=wishes,
        steps=ReadSteps.of(settings),
    )
    for marker in markers:
        mark_compiled(marker)  # the stages have run everything
    notices = loaded.notices + _device_notices(loaded.plans, settings)
    if profile is not None:
        follow_stages(loaded, settings, profile.save)
        notices += () if profile.found.notice is None else (profile.found.notice,)
    return _placed(loaded, settings, notices)


def _compile(wanted: _Wanted, cards: Sequence[PlannedCard]) -> tuple[Path, ...]:
    """Ahead of the stages; the files that say so once all stages have run."""
    markers = []
    for card in one_of_each_kind(cards):
        request = compile_request(wanted.directory, wanted.settings, card)
        markers.append(marker_of(request, wanted.source, card.facts))
        compile_ahead(request, markers[-1], card.facts, wanted.on_progress)
    return tuple(markers)


def one_of_each_kind(cards: Sequence[PlannedCard]) -> tuple[PlannedCard, ...]:
    """Cards that need kernels of their own, the one of each kind whose plan has most of them: experts in tiers."""
    by_kind: dict[object, PlannedCard] = {}
    for card in sorted(cards, key=lambda each: each.plan.seats is None):
        by_kind.setdefault((card.facts.name, card.facts.compute_capability), card)
    return tuple(by_kind.values())


def cards_of(devices: Sequence[StageDevice]) -> list[Card]:
    """Of every stage; the first one is what torch means when it is told no other."""
    found = [Card.cpu() if each.card is None else Card.cuda(each.card) for each in reversed(devices)]
    return found[::-1]


def _device_notices(plans: StagePlans, settings: EngineSettings) -> tuple[str, ...]:
    """Settings that change nothing where the model lies as it does."""
    notices: tuple[str, ...] = ()
    requests = [plan.request for plan in plans.plans]
    if settings.drafts:
        notices += (f"drafts = {settings.drafts} changes nothing: draft layers do not run on a GPU yet",)
    if 0 < plans.context <= settings.kv_resident:
        notices += (
            f"kv_resident = {settings.kv_resident:,} keeps all {plans.context:,} tokens of a conversation on the "
            "card, and in main memory too: 0 keeps them on the card alone",
        )
    if not any(each.weights.get(Part.NGRAM) for each in requests):
        notices += _changing_nothing(("ngram_table",), settings, "the model has no n-gram table")
    if plans.has_tiers:
        if not any(each.is_filed for each in requests):
            notices += _changing_nothing(("mmap",), settings, "all experts lie in memory")
        return notices
    reads_tables = any(each.reads_tables for each in requests)
    of_tiers = (name for name in _OF_TIERS[1:] if name != "expert_wait" or not reads_tables)
    return notices + _changing_nothing(("mmap", *of_tiers), settings, "all experts lie on the card")


def _placed(loaded: LoadedStage, settings: EngineSettings, notices: tuple[str, ...]) -> _Placed:
    model = loaded.model
    ahead = windows_ahead(model) if settings.window_sampling == "auto" else ()
    return _Placed(
        model,
        ahead,
        loaded.plans.slots,
        model.slots.slot_bytes,
        loaded.points,
        model.slots.parked.space,
        notices,
        groups=len(model.groups),
        is_piped=loaded.plans.split.stages > 1 and len(model.groups) > 1,
        slot_costs=cost_words(slot_costs(loaded.plans)),
    )


def _on_ranks(wanted: _Wanted) -> _Placed:
    """Over stages of which this process has the first one."""
    loaded = lead_ranks(wanted.source, wanted.settings, wanted.on_progress)
    return _placed(loaded, wanted.settings, loaded.notices)


def _changing_nothing(names: Collection[str], settings: EngineSettings, why: str) -> tuple[str, ...]:
    """A sentence for each of these settings that was given a value of its own."""
    given = (name for name in names if getattr(settings, name) != getattr(EngineSettings, name))
    return tuple(f"{name} changes nothing: {why}" for name in given)


def compile_request(directory: Path, settings: EngineSettings, card: PlannedCard) -> CompileRequest:
    """Which kernels a model needs on a card."""
    folder, plan = kernel_cache_folder(settings), card.plan
    sizes = (settings.quantize, plan.slots, 0, card.index, folder)
    has_tiers = plan.seats is not None
    reads_tables = plan.request.reads_tables
    waits_in_stream = (has_tiers or reads_tables) and _waits_in_stream(settings)
    kinds = (settings.dependent_launches, has_tiers, waits_in_stream, reads_tables)
    return CompileRequest(
        directory,
        *sizes,
        *kinds,
        reads_chunks=plan.request.chunk_rows > 0,
        kv_kind=settings.kv_kind,
        kv_resident=settings.kv_resident,
        groups=groups_of(plan) if has_tiers else 1,
    )


def _waits_in_stream(settings: EngineSettings) -> bool:
    return settings.expert_wait == "stream"


def model_facts(loaded: LoadedModel, settings: EngineSettings) -> ModelFacts:
    """What others may know of a loaded model. Opens its files once more; reads no weight."""
    source = open_model(loaded.directory, settings.quantize)
    family = family_of(source.config)
    config = family.parse_config(source.config)
    shapes = family.expected_tensors(config)
    read = set(wanted_names(shapes, with_drafts=loaded.engine.is_drafting)) & set(source.names())
    sampling, wrong = recommended_sampling_of(source)
    return ModelFacts(
        name=loaded.directory.name,
        family=family.name,
        context=loaded.engine.context,
        trained_context=config.max_position,
        vocabulary_size=config.vocabulary_size,
        parameters=sum(map(math.prod, shapes.values())),
        weight_bytes=sum(map(source.stored_bytes, read)),
        slots=loaded.slots,
        slot_bytes=loaded.slot_bytes,
        end_of_text_ids=loaded.end_of_text_ids,
        tokenizer=tokenizer_files_of(source),
        notices=loaded.notices + wrong,
        recommended_sampling=sampling,
        kv_kind=settings.kv_kind,
        slot_costs=loaded.slot_costs,
    )


def _check_context(settings: EngineSettings, max_position: int) -> None:
    if settings.context is not None and settings.context > max_position:
        raise SettingsError(
            f"setting context: {settings.context} does not work; this model was made for at most {max_position} tokens"
        )
