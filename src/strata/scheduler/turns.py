"""Remembers which conversations have been kept, without their tokens, so that a lost one is noticed.

A prompt that contains a kept conversation and is read again all the same took longer than it had to, and where torch
reads it gets an answer of other arithmetic than if it had gone on: whoever asked is told.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

MOST_REMEMBERED = 4096


class KeptTurns:
    """Lengths and digests of the conversations behind which a turn could have gone on."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._lengths: OrderedDict[tuple[int, bytes], None] = OrderedDict()

    def remember(self, tokens: Sequence[int]) -> None:
        """These rows were kept at the end of a reply."""
        key = len(tokens), _digests(tokens, [len(tokens)])[0]
        self._lengths[key] = None
        self._lengths.move_to_end(key)
        if len(self._lengths) > self._most:
            self._lengths.popitem(last=False)

    def longest_in(self, prompt: Sequence[int]) -> int:
        """Tokens of the longest of them that the prompt goes on from; 0 if there is none."""
        lengths = sorted({length for length, _ in self._lengths if length < len(prompt)})
        found = zip(lengths, _digests(prompt, lengths), strict=True)
        return max((key[0] for key in found if key in self._lengths), default=0)


def _digests(tokens: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Of the first so many tokens each; lengths rise."""
    running = hashlib.blake2b(digest_size=16)
    digests = []
    start = 0
    for length in lengths:
        running.update(array("q", tokens[start:length]).tobytes())
        digests.append(running.copy().digest())
        start = length
    return digests
