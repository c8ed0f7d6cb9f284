"""The composition root: from a model's directory to a tokenizer and an engine that belong together.

The only file that knows every part and wires them; no part is made anywhere else. Decides nothing that a part could.
"""

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strata import models_shipped
from strata.engine.checkpoint_budget import checkpoints_on_cpu, point_budget
from strata.engine.compile_share import CompileRequest
from strata.engine.cpu_loading import (
    cpu_needs,
    cpu_state_bytes,
    fitting_threads,
    load_weights,
    wanted_names,
    wanted_shapes,
)
from strata.engine.cpu_memory import plan_cpu_memory
from strata.engine.device_choice import card_problem, is_worth_telling, usable_card
from strata.engine.device_needs import plan_for
from strata.engine.device_windows import DeviceWindows
from strata.engine.engine import TokenEngine
from strata.engine.memory_plan import MemoryPlan, budgets_of
from strata.engine.messages import ModelFacts
from strata.engine.placement import full_slot_bytes, slots_that_fit
from strata.engine.points import PointBudget
from strata.engine.precompile import compile_ahead, mark_compiled, marker_of
from strata.engine.read_pace import ReadSteps
from strata.engine.stage_loading import Card, ModelFiles, load_stage
from strata.engine.tier_following import end_behind, follow_windows
from strata.engine.tier_loading import TierWishes, plan_problem
from strata.engine.tier_profile import open_profile
from strata.engine.windows_ahead import WindowsAhead
from strata.errors import ConfigError, ModelError, SettingsError
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
    chosen = choose_device(source, settings)
    wanted = _Wanted(directory, family, config, source, settings, on_progress)
    placed = _on_cpu(wanted) if chosen.card is None else _on_card(wanted, chosen.card)
    notices = source.notices + chosen.notices + placed.notices
    ends = tokenizer.eos_token_ids | frozenset(config.end_of_text_ids)
    if problem := end_ids_problem(ends, config.vocabulary_size):
        notices += (problem,)
    grammars = GrammarFactory(lambda: grammar_vocabulary(tokenizer, ends, config.vocabulary_size))
    return LoadedModel(
        directory=directory,
        tokenizer=tokenizer,
        engine=TokenEngine(placed.model, settings, grammars, placed.ahead, placed.points),
        end_of_text_ids=ends,
        notices=notices,
        slots=placed.slots,
        slot_bytes=placed.slot_bytes,
    )


@dataclass(frozen=True)
class PlannedCard:
    """A card of this PC and what goes onto it."""

    index: int
    facts: GpuFacts
    plan: MemoryPlan


@dataclass(frozen=True)
class DeviceChoice:
    """Where a model runs: on a card as planned, or on the CPU, and what to tell of it."""

    card: PlannedCard | None = None  # None: on the CPU
    notices: tuple[str, ...] = ()


def choose_device(source: ModelSource, settings: EngineSettings) -> DeviceChoice:
    """As the setting `device` says; reads no weight.

    Raises SettingsError or ModelError if it must be a card and none of this PC will do.
    """
    if settings.device == "cpu":
        _require_no_pool(settings, "on the CPU all keys and values lie in main memory")
        return DeviceChoice()
    gpus = read_gpus()
    problem = card_problem(settings, gpus, None if gpus else why_no_gpu())
    card = usable_card(gpus)
    if problem is None and card is not None:
        budgets = budgets_of(gpus[card], read_memory(), settings.vram_gib, settings.ram_gib)
        plan = plan_for(source, dataclasses.replace(settings, drafts=0), budgets)
        refusal = plan_problem(plan)
        if refusal is None:
            return DeviceChoice(PlannedCard(card, gpus[card], plan))
        if settings.device == "cuda":
            raise ModelError(refusal)
        problem = refusal
    elif settings.device == "cuda":
        raise SettingsError(f"setting device: cuda does not work: {problem}; cpu works")
    _require_no_pool(settings, f"it is for a card, and the model runs on none: {problem}")
    if not is_worth_telling(gpus, read_gpu_driver()):
        return DeviceChoice()
    return DeviceChoice(notices=(f"the model runs on the CPU and not on a card: {problem}",))


def _require_no_pool(settings: EngineSettings, why: str) -> None:
    """Raises SettingsError if a card was to keep a part of the keys and values."""
    if settings.kv_resident:
        raise SettingsError(f"setting kv_resident: {settings.kv_resident:,} does not work: {why}; 0 does")


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
    ahead: WindowsAhead | None
    slots: int
    slot_bytes: int
    points: PointBudget
    notices: tuple[str, ...] = ()


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
    of_cards = ("vram_gib", *(() if cache_bytes else ("ram_gib",)), "ngram_table", *_OF_TIERS)
    notices += _changing_nothing(of_cards, settings, "the model runs on the CPU")
    if cache_bytes is None:
        notices += _changing_nothing(("mmap",), settings, "all experts lie in memory")
    context = min(settings.context or model.max_position, model.max_position)
    state = cpu_state_bytes(wanted.source, settings)
    checkpoints = checkpoints_on_cpu(state, settings, read_memory())
    slot_bytes = full_slot_bytes(state, context, checkpoints.per_slot)
    slots = settings.slots or 1  # for which the plan has room; experts that are read have all the rest
    if cache_bytes is None:
        slots = slots_that_fit(settings.slots, slot_bytes, read_memory().usable - checkpoints.fixed, context)
    points = point_budget(checkpoints.at(slots, context), state.fixed, slots)
    return _Placed(model, None, slots, slot_bytes, points, notices)


def _on_card(wanted: _Wanted, card: PlannedCard) -> _Placed:
    settings, source = wanted.settings, wanted.source
    wanted.set_threads()
    force_reference(settings.gpu_path == "torch")
    use_dependent_launches(settings.dependent_launches)
    use_cache(kernel_cache_folder(settings))
    request = compile_request(wanted.directory, settings, card)
    marker = marker_of(request, source, card.facts)
    if settings.gpu_path == "triton":
        compile_ahead(request, marker, card.facts, wanted.on_progress)
    names = wanted_names(source.names(), with_drafts=False)
    profile = None
    if card.plan.seats is not None:
        profile = open_profile(source, names, settings.expert_profile, profiles_folder())
    wishes = TierWishes(None if profile is None else profile.heat, settings.threads, _waits_in_stream(settings))
    files, place = ModelFiles(wanted.family, wanted.config, source, names), Card.cuda(card.index)
    loaded = load_stage(
        files,
        place,
        card.plan,
        wanted.on_progress,
        is_profiled=settings.verify_profile,
        wishes=wishes,
        steps=ReadSteps.of(settings),
    )
    if settings.gpu_path == "triton":
        mark_compiled(marker)  # the stage has run everything
    notices = loaded.notices
    if settings.drafts:
        notices += (f"drafts = {settings.drafts} changes nothing: draft layers do not run on a GPU yet",)
    if 0 < loaded.plan.context <= settings.kv_resident:
        notices += (
            f"kv_resident = {settings.kv_resident:,} keeps all {loaded.plan.context:,} tokens of a conversation on the "
            "card, and in main memory too: 0 keeps them on the card alone",
        )
    if not loaded.plan.request.weights.get(Part.NGRAM):
        notices += _changing_nothing(("ngram_table",), settings, "the model has no n-gram table")
    if loaded.tiers is None:
        names_of_tiers = (name for name in _OF_TIERS[1:] if name != "expert_wait" or not card.plan.request.reads_tables)
        notices += _changing_nothing(("mmap", *names_of_tiers), settings, "all experts lie on the card")
    elif profile is not None:
        if not loaded.plan.request.is_filed:
            notices += _changing_nothing(("mmap",), settings, "all experts lie in memory")
        swapper = follow_windows(loaded.tiers, loaded.model.stage, settings)
        end_behind(loaded.model, loaded.tiers, swapper, profile.save)
        notices += () if profile.found.notice is None else (profile.found.notice,)
    ahead = WindowsAhead(DeviceWindows(loaded.model)) if settings.window_sampling == "auto" else None
    slot_bytes = loaded.model.slots.slot_bytes
    return _Placed(loaded.model, ahead, loaded.plan.slots, slot_bytes, loaded.points, notices)


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
    )


def _check_context(settings: EngineSettings, max_position: int) -> None:
    if settings.context is not None and settings.context > max_position:
        raise SettingsError(
            f"setting context: {settings.context} does not work; this model was made for at most {max_position} tokens"
        )
