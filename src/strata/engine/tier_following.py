"""What changes about experts in tiers while windows run: who has a seat, and how much is read in place.

Knows the settings, who is called before each launch, and how all of it ends; decides nothing: that is
`experts/swapping.py`'s and `experts/share.py`'s.
"""

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from strata.engine.failures import is_out_of_memory
from strata.engine.graphs import replay_of
from strata.engine.memory_plan import GIB
from strata.engine.reading_in_place import reading_in_place
from strata.engine.stage import Stage
from strata.engine.stage_programs import Variant
from strata.engine.tier_loading import LoadedTiers
from strata.errors import EngineError
from strata.experts.cache import SwapRule
from strata.experts.share import FixedCosts, Rates, fixed_share_table
from strata.experts.share_measuring import (
    CardSide,
    PoolSide,
    listed_experts,
    measure_costs,
    measure_rates,
    one_by_one,
)
from strata.experts.share_tuning import ShareTuner, Sizes
from strata.experts.streams import Streams, streams_of
from strata.experts.swapping import Swapper
from strata.settings import EngineSettings

BeforeLaunch = Callable[[bool], None]  # is told whether a read is launched
TakeHeat = Callable[[NDArray[np.float64]], None]  # of [layers, experts]: how many windows asked for each
TIMED_WINDOWS = 8
_log = logging.getLogger("strata.experts")


def follow_windows(
    loaded: LoadedTiers, stage: Stage, settings: EngineSettings, groups: Sequence[torch.cuda.Stream] = ()
) -> Swapper:
    """From now on seats and share follow what this stage's windows ask for, as far as settings and memory allow it.

    groups: the streams of windows of several groups, beside the current one (`GroupRoads.beside_main`).
    Measures both sides where a card reads main memory and no share was asked for: below a second. The stage's windows
    have all run once. The swapper lives as long as the tiers; its `heat` is what was asked for so far. Raises
    EngineError if the card has no memory left to measure with.
    """
    device = stage.device
    store, streams = loaded.store, streams_of(device, groups)
    _log.info(
        "experts: %.1f GiB in seats, %.1f GiB in main memory, together %.2f times their size",
        store.seat_bytes / GIB,
        store.ram_bytes / GIB,
        store.held_ratio,
    )
    followers = _set_share(loaded, stage, streams, settings.pcie_share)
    moves = settings.expert_swaps and (store.is_pinned or device.type == "cpu")
    rule = SwapRule() if moves else SwapRule(most_swaps=0)
    swapper = Swapper(store, loaded.tiers, loaded.tiers.asked, streams, rule)
    followers.append(swapper.before_launch)

    def before_launch(is_read: bool) -> None:
        for follow in followers:
            follow(is_read)

    loaded.tiers.follow(before_launch, swapper.note_prompt)
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


def _set_share(loaded: LoadedTiers, stage: Stage, streams: Streams, asked: float | None) -> list[BeforeLaunch]:
    """Set how much is read in place; whoever refines that."""
    store, tiers = loaded.store, loaded.tiers
    most = tiers.tables[0].share.numel() - 1
    if asked is not None or stage.device.type != "cuda" or not store.is_pinned or not store.in_ram.any():
        tiers.set_share(torch.from_numpy(fixed_share_table(asked or 0.0, most)))
        return []
    begin = time.perf_counter()
    rates, costs, card_s = _measured(loaded, stage)
    _log.info(
        "experts that are not on the card: %s, a request of the CPU %.1f us more, found in %.1f s",
        rates.in_words(),
        costs.cpu * 1e6,
        time.perf_counter() - begin,
    )
    sizes = Sizes(round(float(store.blob_bytes.mean())), most, card_s)
    return [ShareTuner(tiers, streams, rates, costs, sizes, _log.info).before_launch]


def _card_seconds(stage: Stage) -> float:
    """That a layer takes the card for itself: of a window over rows that name no slot, so without experts and cells."""
    stage.set_plan(0, ())
    window = replay_of(stage.launches(Variant.WINDOW, stage.buckets[0]), stage.device)
    card = CardSide(window, 1, stage.device)
    for _ in range(2):  # the first time warms it up
        card.start(TIMED_WINDOWS)
        _, seconds = card.wait()
    return seconds / TIMED_WINDOWS / stage.model.sparse_layers


def _measured(loaded: LoadedTiers, stage: Stage) -> tuple[Rates, FixedCosts, float]:
    """With different experts for both sides, where there are more than one row asks for; and of several groups what a
    layer takes the card for itself."""
    lists = listed_experts(loaded.store, loaded.tiers.mailboxes[0].out.shape[1])
    of_card, of_cpu = lists[::2], lists[1::2] or lists
    try:
        card = CardSide(reading_in_place(stage, of_card), sum(each.total_bytes for each in of_card), stage.device)
        rates = measure_rates(PoolSide(of_cpu, loaded.pool), card)
        rates, costs = measure_costs(rates, PoolSide(one_by_one(of_cpu), loaded.pool), of_cpu)
        return rates, costs, _card_seconds(stage) if len(loaded.tiers.windows) > 1 else 0.0
    except RuntimeError as failure:
        if not is_out_of_memory(failure):
            raise
        raise EngineError(
            "the card ran out of memory while it was measured how fast it reads experts in main memory: other programs "
            "may have taken it; with a setting pcie_share nothing is measured"
        ) from failure
