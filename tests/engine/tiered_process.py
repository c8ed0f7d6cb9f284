"""An engine's process on a made-up card: windows by torch's twins over experts in tiers whose seats change every time.

Run by `engine.client` in place of the real one. As long as there is a file `armed` in the folder STRATA_TEST_FOLDER, a
copy of an expert stands still in its middle, for ever, behind a file `stuck`.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from strata import build, engine_process
from strata.engine import tier_following
from strata.engine.stage_loading import Card
from strata.experts.cache import SwapRule
from strata.experts.streams import PlainStreams
from strata.hardware import GpuFacts

FOLDER = "STRATA_TEST_FOLDER"
CARD_BYTES = 8 << 30
EAGER = SwapRule(every=1, most_swaps=8, margin=0.1, decay=0.7, again=1.0)


class HalfCopies(PlainStreams):
    """Copies that arrive in two halves."""

    def copy_beside(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See `Streams`."""
        middle, folder = len(source) // 2, Path(os.environ[FOLDER])
        target[:middle].copy_(source[:middle])
        if (folder / "armed").exists():
            target[middle:].zero_()
            (folder / "stuck").touch()
            threading.Event().wait()
        target[middle:].copy_(source[middle:])


def pretend() -> None:
    """From now on this process has a card, which is its processor."""
    facts = GpuFacts("a made-up card", CARD_BYTES, CARD_BYTES, (9, 0))
    card = Card(torch.device("cpu"), lambda: CARD_BYTES, lambda: None)
    pretended: list[tuple[Any, str, Any]] = [
        (build, "read_gpus", lambda: (facts,)),
        (build, "use_cache", lambda _: None),
        (build, "force_reference", lambda _: None),
        (Card, "cuda", lambda _: card),
        (tier_following, "streams_of", lambda *_: HalfCopies()),
        (tier_following, "SwapRule", lambda **_: EAGER),
    ]
    for where, name, value in pretended:
        setattr(where, name, value)


if __name__ == "__main__":
    pretend()
    sys.exit(engine_process.main())
