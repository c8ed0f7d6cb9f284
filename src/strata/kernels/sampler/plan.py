"""What a host tells a window before it runs, in one copy: its number, which slots take part and what their drafts are.

Knows int32 words; no model. A window may be planned before the one in front of it has ended, so the plan holds nothing
that this one decides: no positions, no last tokens, and more drafts than a reply has room for are cut on the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

HEADER_WORDS = 1  # the window's number
PART_WORDS = 2  # of a segment, before its drafts: slot or -1, number of drafts


@dataclass(frozen=True)
class PlannedPart:
    """One slot's share."""

    slot: int
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True)
class WindowPlan:
    """int32 [1 + segments * (2 + most_drafts)] on the computing device."""

    words: torch.Tensor
    segments: int
    most_drafts: int

    @classmethod
    def empty(cls, segments: int, most_drafts: int, device: torch.device | str) -> "WindowPlan":
        """Room for plans; it names no slot."""
        words = torch.tensor(plan_words(0, (), segments, most_drafts), dtype=torch.int32, device=device)
        return cls(words, segments, most_drafts)


def plan_words(serial: int, parts: Sequence[PlannedPart], segments: int, most_drafts: int) -> list[int]:
    """The words of a plan, part s being segment s. Raises ValueError if it does not fit or names a slot twice."""
    if len(parts) > segments:
        raise ValueError(f"a window of {segments} segments has no room for {len(parts)} slots")
    slots = [part.slot for part in parts]
    if len(set(slots)) < len(slots):
        raise ValueError(f"a slot takes part in a window once; the plan names the slots {slots}")
    words = [serial]
    for part in parts:
        if len(part.drafts) > most_drafts:
            raise ValueError(f"slot {part.slot} has {len(part.drafts)} drafts; a part has room for {most_drafts}")
        unused = [0] * (most_drafts - len(part.drafts))
        words += [part.slot, len(part.drafts), *part.drafts, *unused]
    for _ in range(segments - len(parts)):
        words += [-1, 0, *[0] * most_drafts]
    return words


def parts_of(words: Sequence[int], segments: int, most_drafts: int) -> list[PlannedPart]:
    """What `plan_words` wrote: one part a segment, of slot -1 where there is none."""
    parts = []
    for segment in range(segments):
        first = HEADER_WORDS + segment * (PART_WORDS + most_drafts)
        slot, count = words[first], words[first + 1]
        parts.append(PlannedPart(slot, tuple(words[first + PART_WORDS : first + PART_WORDS + count])))
    return parts
