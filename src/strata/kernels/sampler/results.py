"""What came out of a window, as the host reads it by one copy. Knows int32 words; no request."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

HEADER_WORDS = 1  # the window's number
PART_WORDS = 4  # of a segment, before its tokens: slot or -1, number of tokens, reason, error

# Reasons: why a reply ended with its last token.
GOES_ON, STOPPED, OUT_OF_BUDGET = 0, 1, 2
# Errors: why a window gave no token for a slot. Its reply has ended, and nobody may go on from its state: a row that
# was certain to stand has moved part of it.
NO_ERROR, NOT_FINITE = 0, 1


@dataclass(frozen=True)
class PartResult:
    """What a window gave one slot."""

    slot: int  # -1: the segment was unused, or its reply had ended before
    tokens: tuple[int, ...]
    reason: int
    error: int


@dataclass(frozen=True)
class WindowResults:
    """int32 [1 + segments * (4 + most_drafts + 1)] on the computing device."""

    words: torch.Tensor
    segments: int
    most_drafts: int

    @classmethod
    def empty(cls, segments: int, most_drafts: int, device: torch.device | str) -> "WindowResults":
        """Room for the results of a plan of these sizes."""
        count = HEADER_WORDS + segments * part_words(most_drafts)
        return cls(torch.zeros(count, dtype=torch.int32, device=device), segments, most_drafts)


def part_words(most_drafts: int) -> int:
    """Words of one segment."""
    return PART_WORDS + most_drafts + 1


def result_words(serial: int, parts: Sequence[PartResult], most_drafts: int) -> list[int]:
    """The words of results, one part a segment."""
    words = [serial]
    for part in parts:
        unused = [-1] * (most_drafts + 1 - len(part.tokens))
        words += [part.slot, len(part.tokens), part.reason, part.error, *part.tokens, *unused]
    return words


def read_results(words: Sequence[int], segments: int, most_drafts: int) -> tuple[int, list[PartResult]]:
    """The window's number and one part a segment."""
    parts = []
    for segment in range(segments):
        first = HEADER_WORDS + segment * part_words(most_drafts)
        slot, count, reason, error = words[first : first + PART_WORDS]
        parts.append(PartResult(slot, tuple(words[first + PART_WORDS : first + PART_WORDS + count]), reason, error))
    return words[0], parts
