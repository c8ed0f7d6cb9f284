"""Which devices compute a model's stages as the settings say, and how much of each there is. Pure.

Facts of the cards and of main memory come in; what goes where is a `StagePlans`' matter.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from strata.engine.device_choice import LEAST_CAPABILITY
from strata.engine.memory_plan import GIB, Budget, Budgets, budgets_of
from strata.errors import SettingsError
from strata.hardware import GpuFacts, MemoryFacts
from strata.models.device.layer_split import parse_cuts
from strata.settings import EngineSettings

_DEVICE = re.compile(r"cpu|cuda:\d+")
_FORM = "names with commas between, cuda:0 for the first card, cpu for the processor, such as cuda:0,cuda:1, work"
AUTO = "auto"
CPU_PART = 2  # stages on the CPU hold at most one part in two of main memory; the rest lies beside them, as of cards


@dataclass(frozen=True)
class StageDevice:
    """What computes a stage."""

    card: int | None  # its number; None: the processor
    facts: GpuFacts | None = None

    @property
    def name(self) -> str:
        """As settings name it."""
        return "cpu" if self.card is None else f"cuda:{self.card}"


def is_staged(settings: EngineSettings) -> bool:
    """Whether somebody said which devices there are, or that the layers are split."""
    return settings.devices is not None or settings.layer_split is not None


def asked_cuts(settings: EngineSettings) -> tuple[int, ...] | None:
    """Where the layers are cut; None: that is to be found. Raises SettingsError for what names no layers."""
    return None if settings.layer_split in (None, AUTO) else parse_cuts(str(settings.layer_split))


def stage_devices(settings: EngineSettings, gpus: Sequence[GpuFacts], trouble: str | None) -> tuple[StageDevice, ...]:
    """One for each stage. trouble: why torch sees no card at all. Raises SettingsError with what would work."""
    if settings.dtype != "float32":
        raise SettingsError(f"setting dtype: {settings.dtype} does not work on stages, which compute in float32")
    cuts = asked_cuts(settings)
    stages = None if cuts is None else len(cuts) + 1
    if settings.devices is None:
        return _every_card(settings, gpus, trouble, stages)
    if settings.device != AUTO:
        raise SettingsError(
            f"setting devices: {settings.devices} does not work beside device {settings.device}: leave one of them out"
        )
    found = tuple(_device(name, settings.devices, gpus, trouble) for name in settings.devices.split(","))
    if stages is not None and stages != len(found):
        how = "more than" if stages > len(found) else "fewer than"
        raise SettingsError(
            f"setting layer_split: {settings.layer_split} makes {_count(stages, 'stage')}, {how} the "
            f"{_count(len(found), 'device')} of {settings.devices}: one device a stage works; the same may stand twice"
        )
    return found


def _every_card(
    settings: EngineSettings, gpus: Sequence[GpuFacts], trouble: str | None, stages: int | None
) -> tuple[StageDevice, ...]:
    """Those that our kernels run on; as many as there are stages."""
    wrong = f"setting layer_split: {settings.layer_split} does not work"
    if settings.device == "cpu":
        raise SettingsError(f"{wrong} with device cpu, which has no stages: devices cpu,cpu in its place does")
    found = tuple(
        StageDevice(index, gpu) for index, gpu in enumerate(gpus) if gpu.compute_capability >= LEAST_CAPABILITY
    )
    if not found:
        why = trouble or ("torch sees no GPU" if not gpus else "no card of this PC will do")
        raise SettingsError(f"{wrong}: {why}; with devices cpu,cpu both stages are on the processor")
    if stages is not None and stages > len(found):
        twice = ",".join([found[0].name] * stages)
        raise SettingsError(
            f"{wrong}: it makes {stages} stages, and there {'is' if len(found) == 1 else 'are'} "
            f"{_count(len(found), 'card')} ({', '.join(each.name for each in found)}); devices {twice} puts all of "
            "them on one"
        )
    return found[:stages]


def _device(name: str, whole: str, gpus: Sequence[GpuFacts], trouble: str | None) -> StageDevice:
    if not _DEVICE.fullmatch(name):
        raise SettingsError(f"setting devices: {whole!r} does not work: {name!r} is no device; {_FORM}")
    if name == "cpu":
        return StageDevice(None)
    card = int(name.removeprefix("cuda:"))
    if card >= len(gpus):
        there = ", ".join(f"cuda:{each}" for each in range(len(gpus)))
        raise SettingsError(
            f"setting devices: {name} is not there: "
            + (f"this PC has {there}" if gpus else f"{trouble or 'torch sees no GPU'}; cpu works")
        )
    if gpus[card].compute_capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, each)) for each in (gpus[card].compute_capability, LEAST_CAPABILITY))
        raise SettingsError(
            f"setting devices: {name}, {gpus[card].name}, has compute capability {found} and the kernels need {least}"
        )
    return StageDevice(card, gpus[card])


def stage_budgets(devices: Sequence[StageDevice], memory: MemoryFacts, settings: EngineSettings) -> tuple[Budgets, ...]:
    """Of every stage: its part of its device, in equal parts where one has several, and all of main memory.

    Raises SettingsError for a budget that is more than there is.
    """
    times = Counter(each.card for each in devices)
    whole = memory.total if memory.limit is None else memory.limit
    if settings.ram_gib is not None and settings.ram_gib * GIB > whole:
        raise SettingsError(
            f"setting ram_gib: {settings.ram_gib:g} does not work: this PC, or its limit, has {whole / GIB:.1f} GiB in "
            "all; a smaller number does, and leaving it out takes what is free"
        )
    usable = memory.usable if settings.ram_gib is None else min(memory.usable, int(settings.ram_gib * GIB))
    on_cpu = usable // CPU_PART if times[None] else 0
    ram = Budget(whole, usable - on_cpu, None if settings.ram_gib is None else usable - on_cpu)
    found = []
    for each in devices:
        count = times[each.card]
        if each.facts is None:
            part = on_cpu // count
            found.append(Budgets("the processor", Budget(whole, part), ram, reserve=0))
            continue
        alone = budgets_of(each.facts, memory, settings.vram_gib, settings.ram_gib)
        limit = None if alone.card.limit is None else alone.card.limit // count
        card = Budget(alone.card.total, alone.card.free // count, limit)
        found.append(Budgets(f"{each.name} ({alone.card_name})", card, ram, reserve=alone.reserve // count))
    return tuple(found)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
