"""What changes about experts in tiers while windows run: who has a seat, and how much is read in place.

Knows the settings, who is called before each launch, and how all of it ends; decides nothing: that is
`experts/swapping.py`'s and `experts/share.py`'s.
"""

import logging
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from strata.engine.memory_plan import GIB
from strata.engine.tier_loading import LoadedTiers
from strata.experts.cache import SwapRule
from strata.experts.share import fixed_share_table
from strata.experts.share_measuring import CopyingLink, PoolSide, measure_rates
from strata.experts.share_tuning import ShareTuner
from strata.experts.streams import Streams, streams_of
from strata.experts.swapping import Swapper
from strata.settings import EngineSettings

BeforeLaunch = Callable[[bool], None]  # is told whether a read is launched
TakeHeat = Callable[[NDArray[np.float64]], None]  # of [layers, experts]: how many windows asked for each
_log = logging.getLogger("strata.experts")


def follow_windows(loaded: LoadedTiers, device: torch.device, settings: EngineSettings) -> Swapper:
    """From now on seats and share follow what windows ask for, as far as settings and memory allow it.

    Measures both sides where a card reads main memory and no share was asked for: a second. The swapper lives as long
    as the tiers; its `heat` is what was asked for so far.
    """
    store, streams = loaded.store, streams_of(device)
    _log.info(
        "experts: %.1f GiB in seats, %.1f GiB in main memory, together %.2f times their size",
        store.seat_bytes / GIB,
        store.ram_bytes / GIB,
        store.held_ratio,
    )
    followers = _set_share(loaded, device, streams, settings.pcie_share)
    moves = settings.expert_swaps and (store.is_pinned or device.type == "cpu")
    rule = SwapRule() if moves else SwapRule(most_swaps=0)
    swapper = Swapper(store, loaded.tiers, loaded.tiers.asked, streams, rule)
    followers.append(swapper.before_launch)

    def before_launch(is_read: bool) -> None:
        for follow in followers:
            follow(is_read)

    loaded.tiers.follow(before_launch)
    return swapper


def end_behind(model: object, loaded: LoadedTiers, swapper: Swapper, take_heat: TakeHeat) -> None:
    """Once `model` is gone, or when the process ends: hand over what was asked for, let go of threads and memory."""
    weakref.finalize(model, _end, loaded, swapper, take_heat)


def _end(loaded: LoadedTiers, swapper: Swapper, take_heat: TakeHeat) -> None:
    try:
        take_heat(swapper.heat)
    finally:
        loaded.tiers.stop()  # what is in flight waits for nobody any more
        with suppress(RuntimeError):  # a card that is lost does nothing any more
            swapper.close()
        loaded.tiers.close()


def _set_share(loaded: LoadedTiers, device: torch.device, streams: Streams, asked: float | None) -> list[BeforeLaunch]:
    """Set how much is read in place; whoever refines that."""
    store, tiers = loaded.store, loaded.tiers
    most = tiers.tables[0].share.numel() - 1
    if asked is not None or device.type != "cuda" or not store.is_pinned:
        tiers.set_share(torch.from_numpy(fixed_share_table(asked or 0.0, most)))
        return []
    rates = measure_rates(PoolSide(store, loaded.pool), CopyingLink(store.ram_piece, device))
    _log.info("experts that are not on the card: %s", rates.in_words())
    blob_bytes = round(float(store.blob_bytes.mean()))
    return [ShareTuner(tiers, streams, rates, blob_bytes, most, _log.info).before_launch]
