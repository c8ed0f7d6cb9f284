"""Reads a prompt into a slot, chunk by chunk, and may be cancelled between two of them.

Knows rows and chunks; does not know what is done with the logits that the last row gives.
"""

from collections.abc import Iterator

import torch

from strata.engine.slot import Slot
from strata.models.base import LogitRows, Output


def read_prompt(slot: Slot, prompt: torch.Tensor, chunk_rows: int) -> Iterator[tuple[int, torch.Tensor, Output]]:
    """Read `prompt` [rows] in chunks; after each, yields the rows read so far, its token ids and its output.

    Cuts lie at multiples of `chunk_rows`, itself a multiple of 64, so that the size of a chunk changes no bit. Only the
    last chunk has logits, those of its last row. The draft layer follows all chunks but the last, whose next token
    the caller draws first.
    """
    total = prompt.shape[0]
    for start in range(0, total, chunk_rows):
        chunk = prompt[start : start + chunk_rows]
        is_last = start + len(chunk) == total
        output = slot.read(chunk, LogitRows.LAST if is_last else LogitRows.NONE)
        if slot.drafts is not None and not is_last:
            slot.drafts.follow(output.hidden, chunk)
        yield start + len(chunk), chunk, output
