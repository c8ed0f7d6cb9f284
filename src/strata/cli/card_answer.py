"""What devices of this PC would do with a model: plans of all stages, or why there are none. Knows not how it looks."""

from dataclasses import dataclass
from pathlib import Path

from strata.build import profiled_heat
from strata.engine.cpu_loading import ALL_IN_RAM, check_cpu_settings
from strata.engine.device_plans import plan_devices
from strata.engine.memory_plan import MemoryPlan
from strata.engine.stage_devices import is_staged
from strata.engine.stage_plans import StagePlans
from strata.hardware import Hardware, why_no_gpu
from strata.settings import EngineSettings
from strata.weights.opening import open_model


@dataclass(frozen=True)
class CardAnswer:
    """What devices would do with the model: its plans, and why none can be asked or carry the plans out."""

    plans: StagePlans | None
    problem: str | None

    @property
    def plan(self) -> MemoryPlan | None:
        """Of the first stage."""
        return None if self.plans is None else self.plans.plans[0]

    @property
    def is_used(self) -> bool:
        """Whether the model would run there."""
        return self.problem is None and self.plans is not None


def ask_card(path: Path, settings: EngineSettings, hardware: Hardware) -> CardAnswer:
    """The plans for the devices that would be used. Raises SettingsError for what is refused when a model is loaded."""
    trouble = None if hardware.gpus else why_no_gpu()
    source = open_model(path, settings.quantize)
    found = plan_devices(
        source, settings, hardware.gpus, hardware.memory, trouble, lambda: profiled_heat(source, settings)
    )
    if not found.is_used and settings.device != "cuda" and not is_staged(settings):
        is_asked = settings.device == "cpu"
        why = ALL_IN_RAM if is_asked else f"it is for a card, and the model runs on none: {found.problem}"
        check_cpu_settings(source, settings, hardware.memory, why)
    return CardAnswer(found.plans, found.problem)
