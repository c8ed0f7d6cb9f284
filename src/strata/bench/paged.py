"""Tokens a second with keys and values in main memory, beside the same conversations with all of them on the card.

Knows turns and what is counted; the conversations are in `conversations.py`. Which blocks rows choose is made up: each
block's key has a size of its own, drawn once, so that large ones are chosen again and again by whatever is asked; how
far sizes spread decides how much stays from one window to the next, and both are told. No speed is shown unless the
last window of every turn has the same logits in both stages, bit for bit.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

import torch

from strata.bench.conversations import ConversationPlan, Conversations
from strata.bench.spread import Spread
from strata.engine.stage import Stage
from strata.errors import EngineError
from strata.kernels.attention_rows import AttentionRowsShape
from strata.kernels.cell_pages import Total
from strata.models.device.description import AttentionMixer, DeviceModel
from strata.quant.cell_codes import CellKind
from strata.types import ProgressCallback

STAGE = "decoding with keys and values in main memory"
KEPT_WINDOWS = 8  # over which it is counted how many of the chosen blocks stay


@dataclass(frozen=True)
class PagedPlan:
    """What is measured of a model that is there."""

    context: int
    slots: tuple[int, ...]
    residents: tuple[int, ...]  # cells of a slot that the card keeps, one after another
    spread: float = 3.0  # of the logarithm of the sizes of blocks' keys
    rounds: int = 5
    windows: int = 32  # of one turn
    with_profile: bool = False  # also the time of every step
    seed: int = 0
    kv_kind: CellKind = CellKind.BF16

    def conversations(self, resident: int) -> ConversationPlan:
        """What a stage must have room for."""
        windows = max(self.windows, KEPT_WINDOWS)
        return ConversationPlan(self.slots, self.context, windows, self.seed, self.kv_kind, resident)


@dataclass(frozen=True)
class PagedSpeed:
    """One number of conversations and one size of the pool."""

    slots: int
    resident: int
    paged_ms: Spread  # of a window
    whole_ms: Spread
    speed: float  # of all on the card, the median of the rounds' ratios: 1 is as fast
    hits: float  # of the blocks that rows asked for
    kept: float  # of the blocks that a row chose its next one chooses again, in the last attention layer
    brought_bytes: float  # by a window, all layers together
    profile: tuple[str, ...] = ()  # lines of the table of steps


@dataclass
class _Turns:
    """Milliseconds a window of each round, and what the pools counted meanwhile."""

    paged: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    asked: int = 0
    brought: int = 0


def measure_paged(model: DeviceModel, plan: PagedPlan, on_progress: ProgressCallback | None = None) -> list[PagedSpeed]:
    """Run the plan. Raises EngineError if logits differ, or as `Conversations` does."""
    whole = Conversations.open(model, plan.conversations(0))
    spread_keys(whole.stage, plan.spread, plan.seed)
    speeds = []
    total = len(plan.residents) * (plan.rounds + 1)
    for number, resident in enumerate(plan.residents):
        paged = Conversations.open(model, plan.conversations(resident), like=whole)
        turns = {slots: _Turns() for slots in plan.slots}
        for round_ in range(plan.rounds + 1):
            _report(on_progress, number * (plan.rounds + 1) + round_, total)
            for slots in plan.slots:
                found = turns[slots] if round_ > 0 else _Turns()  # the first round fills the pool
                _take_turn(paged, whole, slots, plan.windows, found)
        speeds += [_speed(paged, slots, resident, turns[slots], plan) for slots in plan.slots]
        del paged  # its memory is free before the next one takes as much
    _report(on_progress, total, total)
    return speeds


def spread_keys(stage: Stage, spread: float, seed: int) -> None:
    """Give each block's key of every slot a size of its own, whose logarithm spreads by so much."""
    pooled = stage.state.pooled
    generator = torch.Generator(pooled.device).manual_seed(seed + 1)
    sizes = torch.empty(*pooled.shape[:-1], 1, device=pooled.device).normal_(generator=generator)
    pooled.mul_(sizes.mul_(spread).exp_())


def _take_turn(paged: Conversations, whole: Conversations, slots: int, windows: int, turns: _Turns) -> None:
    before = _counted(paged)
    turns.paged.append(1e3 * paged.decode(slots, windows) / windows)
    asked, brought = (now - then for now, then in zip(_counted(paged), before, strict=True))
    turns.asked, turns.brought = turns.asked + asked, turns.brought + brought
    turns.whole.append(1e3 * whole.decode(slots, windows) / windows)
    if not torch.equal(_last_logits(paged, slots), _last_logits(whole, slots)):
        raise EngineError(
            f"{slots} conversations of {paged.context:,} tokens end with other logits where keys and values lie in "
            "main memory than where they lie on the card: no speed is shown for wrong results"
        )


def _last_logits(conversations: Conversations, slots: int) -> torch.Tensor:
    """float32 [slots, vocabulary] of the last window."""
    stage = conversations.stage
    return stage.to_host(stage.logits(stage.bucket_for(slots))[:slots])


def _speed(paged: Conversations, slots: int, resident: int, turns: _Turns, plan: PagedPlan) -> PagedSpeed:
    return PagedSpeed(
        slots,
        resident,
        paged_ms=Spread.of(turns.paged),
        whole_ms=Spread.of(turns.whole),
        speed=median(there / here for there, here in zip(turns.whole, turns.paged, strict=True)),
        hits=1 - turns.brought / turns.asked,
        kept=kept_share(paged, slots),
        brought_bytes=turns.brought / (plan.rounds * plan.windows) * _block_bytes(paged.stage),
        profile=paged.profile(slots) if plan.with_profile else (),
    )


def kept_share(paged: Conversations, slots: int) -> float:
    """Of the blocks that a row chooses, how many its conversation's next row chooses again; last attention layer."""
    paged.begin(slots)
    chosen, stage = [], paged.stage
    for _ in range(KEPT_WINDOWS):
        paged.window(slots)
        choice = stage.attention_work(stage.bucket_for(slots), _attention_shape(stage)).choice
        assert choice is not None, "a pool belongs to an indexer"
        chosen.append([set(row) for row in stage.to_host(choice.chosen[:slots]).tolist()])
    paged.tokens(slots)
    pairs = [pair for before, after in pairwise(chosen) for pair in zip(before, after, strict=True)]
    return fmean(len(before & after) / len(after) for before, after in pairs)


def _attention_shape(stage: Stage) -> AttentionRowsShape:
    mixers = [layer.mixer for layer in stage.model.layers if isinstance(layer.mixer, AttentionMixer)]
    return mixers[-1].layer.shape


def _counted(paged: Conversations) -> list[int]:
    """Blocks asked for and brought so far, in the order of `Total`."""
    pools = paged.stage.state.pools
    assert pools is not None
    totals = paged.stage.to_host(pools.totals.sum(dim=0)).tolist()
    return [totals[Total.ASKED], totals[Total.BROUGHT]]


def _block_bytes(stage: Stage) -> int:
    pools = stage.state.pools
    assert pools is not None
    layers = pools.owner.shape[0]
    return sum(part.nbytes for part in (*pools.keys.tensors, *pools.values.tensors)) // (layers * pools.places)


def _report(on_progress: ProgressCallback | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(STAGE, done, total)
