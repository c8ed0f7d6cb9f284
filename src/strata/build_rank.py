"""The composition root of one process among those of a model's stages: its device, what it offers, what it loads.

For rank 0, which `build` makes a model of, and for the others, which `stage_rank` has computing.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from strata import models_shipped
from strata.engine.cpu_loading import fitting_threads, wanted_names
from strata.engine.memory_plan import Budgets
from strata.engine.part_loading import Card, ModelFiles
from strata.engine.remote_joining import join
from strata.engine.remote_loading import load_leading
from strata.engine.remote_meeting import lead, offer_of
from strata.engine.remote_ranks import Ranks, ranks_of
from strata.engine.split_plan import Heat, plan_split
from strata.engine.stage_calls import ANSWERS, PartOffer
from strata.engine.stage_devices import StageDevice, asked_cuts, stage_budgets, stage_devices
from strata.engine.stage_following import follow_stages
from strata.engine.stage_loading import LoadedStage
from strata.engine.stage_plans import StagePlans
from strata.engine.tier_loading import TierWishes
from strata.engine.tier_profile import open_profile
from strata.errors import SettingsError
from strata.experts.sources import expert_layers
from strata.hardware import read_gpus, read_memory, why_no_gpu
from strata.kernels.compiled import use_cache
from strata.kernels.roads import force_reference, use_dependent_launches
from strata.models.cell_kind import with_cells
from strata.models.families import family_of
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings, kernel_cache_folder, profiles_folder, torchrun_variables
from strata.types import ProgressCallback
from strata.weights.opening import ModelSource, open_model

PlanStages = Callable[..., StagePlans]  # of budgets by rank, and perhaps of cuts


@dataclass(frozen=True)
class OpenedRank:
    """A process whose device and files are known; nothing is loaded."""

    files: ModelFiles
    card: Card
    offer: PartOffer
    plan: PlanStages
    wishes: TierWishes


def open_rank(directory: Path | None, settings: EngineSettings, ranks: Ranks) -> OpenedRank:
    """For another rank than 0, from a model's directory or file. Raises ModelError, or what `rank_of` raises."""
    opened = rank_of(open_model(directory or models_shipped.default_path(), settings.quantize), settings, ranks)
    _settle_process(opened, settings)
    return opened


def rank_of(source: ModelSource, settings: EngineSettings, ranks: Ranks) -> OpenedRank:
    """Of a model that is open. Raises SettingsError for settings that do not go with stages in other processes."""
    cuts = _cuts(settings, ranks.count)
    family = family_of(source.config)
    config = with_cells(family.parse_config(source.config), CellKind(settings.kv_kind))
    card, budgets = _own_device(settings, ranks)
    files = ModelFiles(family, config, source, wanted_names(source.names(), with_drafts=False))
    wishes = TierWishes(_heat_of(source, files, settings), settings.threads, settings.expert_wait == "stream")

    planned = dataclasses.replace(settings, drafts=0)  # stages have no draft layer

    def plan(of_ranks: Sequence[Budgets], cut_at: Sequence[int] | None = cuts) -> StagePlans:
        return plan_split(source, planned, of_ranks, cut_at, wishes.heat)

    return OpenedRank(files, card, offer_of(budgets, card.device, settings), plan, wishes)


def lead_ranks(source: ModelSource, settings: EngineSettings, on_progress: ProgressCallback | None) -> LoadedStage:
    """For rank 0: the model over the stages of all ranks, once they stand ready.

    Raises SettingsError where torchrun did not start this process as the first of several; EngineError if the others do
    not come, or one of them fails.
    """
    ranks = ranks_of(torchrun_variables())
    if ranks.rank != 0:
        raise SettingsError(f"setting stages: rank {ranks.rank} has a stage of its own: `strata serve` runs it")
    opened = rank_of(source, settings, ranks)
    _settle_process(opened, settings)
    meeting, lines = lead(join(ranks, ANSWERS), opened.offer, opened.plan)
    loaded = load_leading(opened.files, opened.card, meeting, lines, opened.wishes, on_progress)
    follow_stages(loaded, settings, lambda heat: None)  # of some layers: no profile of the model
    return loaded


def _settle_process(opened: OpenedRank, settings: EngineSettings) -> None:
    """How torch and kernels run, for the whole process."""
    torch.set_num_threads(settings.threads or fitting_threads(opened.files.config.hidden_size))
    force_reference(settings.gpu_path == "torch")
    use_dependent_launches(settings.dependent_launches)
    if opened.card.device.type == "cuda":
        use_cache(kernel_cache_folder(settings))


def _cuts(settings: EngineSettings, count: int) -> tuple[int, ...] | None:
    """Where the layers are cut as the settings say; None: as suits what the ranks have. Raises SettingsError."""
    cuts = asked_cuts(settings)
    if cuts is not None and len(cuts) != count - 1:
        raise SettingsError(
            f"setting layer_split: {settings.layer_split} makes {len(cuts) + 1} stages, and torchrun started {count} "
            f"processes: give {_numbers(count - 1)}, or --nproc-per-node {len(cuts) + 1}"
        )
    return cuts


def _numbers(count: int) -> str:
    return "1 number" if count == 1 else f"{count} numbers"


def _own_device(settings: EngineSettings, ranks: Ranks) -> tuple[Card, Budgets]:
    """This process' device and what there is of it. Raises SettingsError if there is none for it."""
    gpus, memory = read_gpus(), read_memory()
    name = _device_name(settings, ranks, len(gpus))
    if name == "cpu":
        processors = [StageDevice(None)] * ranks.count  # as if all processes were on this host
        return Card.cpu(), stage_budgets(processors, memory, settings)[ranks.rank]
    device_setting = "auto" if settings.devices is None else settings.device
    named = dataclasses.replace(settings, device=device_setting, devices=name, layer_split=None)
    (device,) = stage_devices(named, gpus, None if gpus else why_no_gpu())
    assert device.card is not None, "a card was named"
    return Card.cuda(device.card), stage_budgets([device], memory, settings)[0]


def _device_name(settings: EngineSettings, ranks: Ranks, cards: int) -> str:
    """As `devices` says, which has one for each rank; else the card of the process' number on its host, or the CPU."""
    if settings.devices is not None:
        names = settings.devices.split(",")
        if len(names) != ranks.count:
            raise SettingsError(
                f"setting devices: {settings.devices} are {len(names)}, and torchrun started {ranks.count} processes: "
                "name one for each of them, or leave it out"
            )
        return names[ranks.rank]
    if settings.device == "cpu" or (settings.device == "auto" and not cards):
        return "cpu"
    if ranks.local >= cards:
        there = why_no_gpu() if not cards else f"this host has {cards}"
        raise SettingsError(
            f"setting stages: rank {ranks.rank} needs card {ranks.local} of its host, and there is none: {there}; "
            "start as many processes on a host as it has cards, or all of them with --device cpu"
        )
    return f"cuda:{ranks.local}"


def _heat_of(source: ModelSource, files: ModelFiles, settings: EngineSettings) -> Heat | None:
    """What this host's profile of the model says; None: there is none, or there are no experts."""
    if not expert_layers(files.names):
        return None
    return open_profile(source, files.names, settings.expert_profile, profiles_folder()).heat
