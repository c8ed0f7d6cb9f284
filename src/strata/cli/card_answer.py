"""What a card of this PC would do with a model: its memory plan, or why there is none. Knows not how it looks."""

from dataclasses import dataclass, replace
from pathlib import Path

from strata.engine.device_choice import card_problem, usable_card
from strata.engine.device_needs import plan_for
from strata.engine.memory_plan import MemoryPlan, budgets_of
from strata.engine.tier_loading import plan_problem
from strata.hardware import Hardware, why_no_gpu
from strata.settings import EngineSettings
from strata.weights.opening import open_model


@dataclass(frozen=True)
class CardAnswer:
    """What a card would do with the model: its plan, and why no card of this PC can be asked or carry the plan out."""

    plan: MemoryPlan | None
    problem: str | None

    @property
    def is_used(self) -> bool:
        """Whether the model would run there."""
        return self.problem is None and self.plan is not None


def ask_card(path: Path, settings: EngineSettings, hardware: Hardware) -> CardAnswer:
    """The plan for the card that would be used. Raises SettingsError for a budget that is more than there is."""
    gpus = hardware.gpus
    if settings.device == "cpu":
        return CardAnswer(None, "the setting device is cpu")
    problem, card = card_problem(settings, gpus, None if gpus else why_no_gpu()), usable_card(gpus)
    if problem is not None or card is None:
        return CardAnswer(None, problem)
    budgets = budgets_of(gpus[card], hardware.memory, settings.vram_gib, settings.ram_gib)
    source = open_model(path, settings.quantize)
    plan = plan_for(source, replace(settings, drafts=0), budgets)  # drafts do not run there yet
    return CardAnswer(plan, plan_problem(plan))
