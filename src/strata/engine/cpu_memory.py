"""Whether a model fits into main memory on the CPU, and how much of that is for experts that stay in its files.

Pure arithmetic over bytes; knows no file and no tensor.
"""

from dataclasses import dataclass

from strata.engine.memory_plan import GIB
from strata.engine.plan_parts import FREE_PART
from strata.errors import ModelError
from strata.hardware import MemoryFacts


@dataclass(frozen=True)
class CpuNeeds:
    """What a model takes in main memory."""

    whole: int  # bytes with all weights there, without conversations
    experts: int  # of them routed experts
    least_read: int  # of experts at once where they stay in files: what a window asks of one layer
    conversations: int  # of the slots that were asked for, or of one, each full; an unasked context counts to 32,768
    held_as: str  # which type weights are held in, in words
    filing_problem: str | None  # why experts cannot be read from the model's files; None: they can


def plan_cpu_memory(needs: CpuNeeds, memory: MemoryFacts, ram_gib: float | None, *, is_filed: bool) -> int | None:
    """Bytes for experts that are read when they are asked for; None: all weights lie in main memory.

    is_filed: whether experts may stay in files, if memory is short; `ram_gib` then says how much of it there is to use.
    Raises ModelError, with what would do, for a model that does not fit before the system ends the process for it.
    """
    usable = memory.usable if ram_gib is None or not is_filed else min(memory.usable, int(ram_gib * GIB))
    if not memory.total or needs.whole <= usable:
        return None
    cache = _cache_bytes(needs, usable, 0 if ram_gib is not None else usable // FREE_PART)
    if is_filed and needs.filing_problem is None and cache is not None:
        return cache
    there = "may be used" if usable < memory.usable else "are free"
    needed = f"{needs.whole / GIB:.1f} GiB of memory in {needs.held_as} and {usable / GIB:.1f} GiB {there}"
    advice = _advice(needs, is_filed=is_filed, fits_filed=cache is not None)
    raise ModelError(f"this model needs {needed}: {advice}")


def _cache_bytes(needs: CpuNeeds, room: int, free: int) -> int | None:
    """What everything else leaves of `room` for experts that are read, as far as there is more than the least of them
    without `free` bytes; None if it is too little."""
    left = room - (needs.whole - needs.experts) - needs.conversations
    if not needs.experts or left < needs.least_read:
        return None
    return min(needs.experts, max(needs.least_read, left - free))


def _advice(needs: CpuNeeds, *, is_filed: bool, fits_filed: bool) -> str:
    inspect = "`strata inspect` shows what takes how much"
    if not needs.experts:
        return inspect
    if not is_filed:
        can = needs.filing_problem is None and fits_filed
        advice = "with `--mmap`, which leaves experts in the model's file until they are asked for, it would run; "
        return f"{advice if can else ''}{inspect}"
    if needs.filing_problem is not None:
        return f"`--mmap` changes nothing, {needs.filing_problem}"
    least = needs.whole - needs.experts + needs.conversations + needs.least_read
    return (
        f"with experts left in its files it needs {least / GIB:.1f} GiB, {needs.conversations / GIB:.1f} of them for "
        f"conversations and {needs.least_read / GIB:.1f} for the experts that a window may ask of one layer; fewer "
        "slots and a smaller context take less"
    )
