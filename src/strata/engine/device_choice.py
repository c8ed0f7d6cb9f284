"""Whether a model runs on a GPU of this PC, and if not why. Pure: facts of the cards come in, a sentence goes out.

Knows what our kernels need of a card; what a model needs of its memory is a `MemoryPlan`'s matter.
"""

from collections.abc import Sequence

from strata.hardware import GpuFacts
from strata.settings import EngineSettings

LEAST_CAPABILITY = (8, 0)


def usable_card(gpus: Sequence[GpuFacts]) -> int | None:
    """The index of the first card that our kernels run on."""
    return next((index for index, gpu in enumerate(gpus) if gpu.compute_capability >= LEAST_CAPABILITY), None)


def card_problem(settings: EngineSettings, gpus: Sequence[GpuFacts], trouble: str | None) -> str | None:
    """Why no card of this PC can be used under these settings, in a sentence without a full stop; None if one can.

    `trouble`: why torch sees no card at all.
    """
    if settings.dtype != "float32":
        return f"dtype is {settings.dtype}, which only the CPU computes: leave it out, or use the CPU"
    if not gpus:
        return trouble or "torch sees no GPU"
    if usable_card(gpus) is None:
        best = max(gpus, key=lambda gpu: gpu.compute_capability)
        found, least = (".".join(map(str, each)) for each in (best.compute_capability, LEAST_CAPABILITY))
        return (
            f"{best.name} has compute capability {found} and the kernels need {least} "
            "(cards since the GeForce RTX 30 series and the A100)"
        )
    return None


def is_worth_telling(gpus: Sequence[GpuFacts], driver: str | None) -> bool:
    """Whether somebody who did not choose would want to know that the CPU computes: there is a card, or a driver."""
    return bool(gpus) or driver is not None
