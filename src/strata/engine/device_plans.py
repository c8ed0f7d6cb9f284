"""What the devices of a PC would do with a model under the settings: plans of all stages, or why there are none. Pure.

Facts of the PC come in; no weight is read.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.engine.device_choice import card_problem, usable_card
from strata.engine.device_needs import plan_for
from strata.engine.memory_plan import budgets_of
from strata.engine.split_plan import Heat, plan_split
from strata.engine.stage_devices import StageDevice, asked_cuts, is_staged, stage_budgets, stage_devices
from strata.engine.stage_plans import StagePlans, stage_words
from strata.engine.tier_loading import plan_problem
from strata.hardware import GpuFacts, MemoryFacts
from strata.models.families import family_of
from strata.settings import EngineSettings
from strata.weights.opening import ModelSource

FindHeat = Callable[[], Heat | None]  # what a profile of the model's experts says, if there is one


@dataclass(frozen=True)
class PlannedDevices:
    """The devices of all stages and what goes onto them; `problem`: why it cannot be carried out, None: it can."""

    devices: tuple[StageDevice, ...]
    plans: StagePlans | None  # None: no device of this PC can be asked
    problem: str | None = None

    @property
    def is_used(self) -> bool:
        """Whether the model would run there."""
        return self.problem is None and self.plans is not None


def plan_devices(
    source: ModelSource,
    settings: EngineSettings,
    gpus: Sequence[GpuFacts],
    memory: MemoryFacts,
    trouble: str | None,
    find_heat: FindHeat,
) -> PlannedDevices:
    """Stages as the settings say, or else the first card that will do.

    trouble: why torch sees no card. Draft layers do not run there. Raises SettingsError for settings that work nowhere,
    and for a budget that is more than there is.
    """
    settings = dataclasses.replace(settings, drafts=0)
    if is_staged(settings):
        devices = stage_devices(settings, gpus, trouble)
        cuts = asked_cuts(settings) if len(devices) > 1 else ()
        heat = find_heat() if cuts is None else None
        plans = plan_split(source, settings, stage_budgets(devices, memory, settings), cuts, heat)
        return PlannedDevices(devices, plans, plans.refusal or _problem(plans))
    if settings.device == "cpu":
        return PlannedDevices((), None, "the setting device is cpu")
    problem, card = card_problem(settings, gpus, trouble), usable_card(gpus)
    if problem is not None or card is None:
        return PlannedDevices((), None, problem)
    plan = plan_for(source, settings, budgets_of(gpus[card], memory, settings.vram_gib, settings.ram_gib))
    layers = family_of(source.config).parse_config(source.config).num_layers
    plans = StagePlans.single(plan, layers)
    return PlannedDevices((StageDevice(card, gpus[card]),), plans, plans.refusal or _problem(plans))


def _problem(plans: StagePlans) -> str | None:
    """Why plans that fit cannot be carried out here."""
    for number, plan in enumerate(plans.plans):
        problem = plan_problem(plan)
        if problem is not None:
            return problem if plans.split.stages == 1 else f"{stage_words(plans.split, number)}: {problem}"
    return None
