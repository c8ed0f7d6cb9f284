"""Decoding with experts in three tiers, one cache size after another, beside what measured rates allow.

Knows the order of what is run and when a speed may be shown: only if every size gives the same tokens, turn by turn.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from strata.bench.conversations import ConversationPlan, Conversations, fill_state
from strata.bench.grouped import GroupedConversations, is_shared
from strata.bench.spread import Spread
from strata.bench.tier_counts import TierCounter, WindowCounts
from strata.bench.tier_formula import TierBytes, TierRates, limit_ms, side_by_side_limit
from strata.bench.tier_memory import TierMemory, model_in_tiers, model_on_device, seats_of
from strata.bench.window_bytes import window_bytes
from strata.engine.tier_following import follow_windows
from strata.engine.tier_loading import LoadedTiers, make_tiers
from strata.errors import EngineError
from strata.models.device.description import DeviceModel, SparseMlp
from strata.native.pool import Pool
from strata.quant.cell_codes import CellKind
from strata.settings import EngineSettings
from strata.types import ProgressCallback

PROFILE_ROWS = 8
PROFILE_WINDOWS = 64  # with so many rows about ten choices for each expert of the published shape
ROUTED_WINDOWS = 4
WHOLE = 100


@dataclass(frozen=True)
class TierPlan:
    """What is measured of a model that is there."""

    caches: tuple[int, ...]  # percent of each layer's experts that have a seat
    slots: tuple[int, ...]
    context: int
    rounds: int
    windows: int  # of one turn
    is_popular: bool  # the hottest experts of a short profile have the seats; else any
    pcie_share: float | None = None  # of misses that the card reads in place; None: measured and refined, if it can
    waits_in_stream: bool = False  # the stream waits for the CPU's rows, and no kernel
    with_swaps: bool = False  # any experts have them at first, and they follow the windows
    with_profile: bool = False  # also the time of every step
    profile_windows: int = PROFILE_WINDOWS  # that tell who is hot
    seed: int = 0
    kv_kind: CellKind = CellKind.BF16
    groups: tuple[int, ...] = (1,)  # into so many the conversations are shared out, one number after another

    def conversations(self, slots: tuple[int, ...], windows: int) -> ConversationPlan:
        """What a stage must have room for."""
        return ConversationPlan(slots, self.context, windows, self.seed, self.kv_kind)


@dataclass(frozen=True)
class TierSpeed:
    """One cache size with one number of conversations."""

    cache: int
    is_planned: bool  # False: all experts on the card, as a model runs that fits
    slots: int
    cold_ms: float  # a window of the first turn behind the start
    window_ms: Spread
    tokens_per_second: Spread
    counts: WindowCounts
    needed: TierBytes
    limit_ms: float | None  # None where there is no card
    profile: tuple[str, ...] = ()
    groups: int = 1  # whose windows run side by side; a window is one of each
    side_by_side_ms: float | None = (
        None  # least time of these, see `side_by_side_limit`; None: for one group, or no card
    )

    @property
    def share_side_by_side(self) -> float | None:
        """Of the limit of windows that wait for nothing but the slower side."""
        return None if self.side_by_side_ms is None else self.side_by_side_ms / self.window_ms.median

    @property
    def share(self) -> float | None:
        """Of the limit: 1 is as fast as the formula says."""
        return None if self.limit_ms is None else self.limit_ms / self.window_ms.median


@dataclass
class TierBench:
    """A model whose dense part is on the device and whose experts are in main memory, and who computes them."""

    model: DeviceModel
    memory: TierMemory
    pool: Pool
    rates: TierRates | None  # None where no card reads main memory
    plan: TierPlan
    _tokens: dict[int, list[list[int]]] = field(default_factory=dict)  # by number of slots: what each turn ended with
    _seated_ms: dict[int, float] = field(default_factory=dict)  # by number of slots: a window where all have seats

    def measure(self, on_progress: ProgressCallback | None = None) -> list[TierSpeed]:
        """All cache sizes in order; the whole one twice, with a plan in which nobody waits and without.

        Raises EngineError if sizes give different tokens.
        """
        heat = np.zeros((len(self.memory.layers), self.memory.experts), np.int64)
        if self.plan.is_popular and not self.plan.with_swaps:
            heat = self.profile()
        kinds: list[tuple[int, int | None]] = [
            (cache, groups) for cache in self.plan.caches for groups in self.plan.groups
        ]
        kinds += [(WHOLE, None)] * (WHOLE in self.plan.caches)
        self._measure_seated()
        speeds = []
        for done, (cache, groups) in enumerate(kinds):
            if on_progress is not None:
                on_progress(f"decoding with a cache of {cache} %", done, len(kinds))
            speeds += self._measure_whole() if groups is None else self._measure_planned(cache, heat, groups)
            self._release_unused()
        if on_progress is not None:
            on_progress("decoding", len(kinds), len(kinds))
        return speeds

    def profile(self) -> NDArray[np.int64]:
        """How often windows without a cache asked for each expert [layers, experts]."""
        nobody = np.zeros((len(self.memory.layers), self.memory.experts), np.int64)
        plan = self.plan.conversations((PROFILE_ROWS,), self.plan.profile_windows)
        with self._tiers(0, nobody) as loaded:
            model = model_in_tiers(self.model, loaded.tiers, self.memory)
            run = Conversations.open(model, plan, is_captured=False)
            follow_windows(loaded, run.stage, self._settings)
            return run.routed(PROFILE_ROWS, self.plan.profile_windows).counts.sum(axis=0, dtype=np.int64)

    def _release_unused(self) -> None:
        """The last cache's seats are gone, but torch keeps pieces of their size."""
        if self.memory.device.type == "cuda":
            torch.cuda.empty_cache()

    def _measure_seated(self) -> None:
        """How long the card alone takes for the windows of a group: with a seat for every expert nobody waits."""
        several = [groups for groups in self.plan.groups if groups > 1]
        sizes = {slots // groups for slots in self.plan.slots for groups in several if is_shared(slots, groups)}
        if not sizes:
            return
        plan = self.plan.conversations(tuple(sorted(sizes)), self.plan.windows)
        nobody = np.zeros((len(self.memory.layers), self.memory.experts), np.int64)
        with self._tiers(WHOLE, nobody) as loaded:
            run = Conversations.open(model_in_tiers(self.model, loaded.tiers, self.memory), plan)
            for slots in plan.slots:
                turns = [run.decode(slots, plan.windows) for _ in range(1 + self.plan.rounds)]
                self._seated_ms[slots] = 1e3 * Spread.of(turns[1:]).median / plan.windows
        self._release_unused()

    def _measure_planned(self, cache: int, heat: NDArray[np.int64], groups: int) -> list[TierSpeed]:
        with self._tiers(cache, heat, groups) as loaded:
            return self._measure(cache, model_in_tiers(self.model, loaded.tiers, self.memory), loaded, groups)

    def _measure_whole(self) -> list[TierSpeed]:
        return self._measure(WHOLE, model_on_device(self.model, self.memory.on_device()), None, 1)

    def _measure(self, cache: int, model: DeviceModel, loaded: LoadedTiers | None, groups: int) -> list[TierSpeed]:
        """Every turn of all numbers of conversations first: what is looked at behind them goes on from their states."""
        numbers = tuple(slots for slots in self.plan.slots if is_shared(slots, groups))
        if not numbers:
            return []
        run = GroupedConversations.open(model, self.plan.conversations(self.plan.slots, self.plan.windows), groups)
        first, counter = run.groups[0], None
        if loaded is not None:
            swapper = follow_windows(loaded, first.stage, self._settings, run.streams)
            counter = TierCounter(loaded.tiers, swapper, len(self.memory.layers))
        taken = {slots: self._turns(run, slots, counter) for slots in numbers}
        speeds = []
        for slots, ((cold, *warm), found) in taken.items():
            counts = found or WindowCounts.all_hits(first.routed(slots, ROUTED_WINDOWS).distinct)
            needed = needed_bytes(model, slots, self.plan, counts, groups)
            speeds.append(
                TierSpeed(
                    cache,
                    counter is not None,
                    slots,
                    1e3 * cold,
                    Spread.of([1e3 * each for each in warm]),
                    Spread.of([slots / each for each in warm]),
                    counts,
                    needed,
                    None if self.rates is None else limit_ms(needed, self.rates, counts.requests),
                    first.profile(slots // groups) if self.plan.with_profile else (),
                    groups,
                    self._side_by_side_ms(slots, groups, needed),
                )
            )
        return speeds

    def _side_by_side_ms(self, slots: int, groups: int, needed: TierBytes) -> float | None:
        if groups == 1 or self.rates is None:
            return None
        return side_by_side_limit(groups * self._seated_ms[slots // groups], needed, self.rates)

    def _turns(
        self, run: GroupedConversations, slots: int, counter: TierCounter | None
    ) -> tuple[list[float], WindowCounts | None]:
        """Seconds of a window of every turn, the cold one first; and where experts ran in the others.

        The conversations are those of the seed, whatever ran before: not every number of them goes into groups.
        """
        fill_state(run.groups[0].stage, self.plan.seed)
        taken = [self._turn(run, slots, 0)]
        if counter is not None:
            counter.start()
        taken += [self._turn(run, slots, turn) for turn in range(1, self.plan.rounds + 1)]
        return taken, None if counter is None else counter.stop(self.plan.rounds * self.plan.windows)

    def _turn(self, run: GroupedConversations, slots: int, turn: int) -> float:
        """Seconds of a window. Raises EngineError if the turn ends with other tokens than with the cache before."""
        taken = run.decode(slots, self.plan.windows) / self.plan.windows
        known, found = self._tokens.setdefault(slots, []), run.tokens(slots)
        if turn == len(known):
            known.append(found)
        if known[turn] != found:
            raise EngineError(
                f"turn {turn + 1} of {slots} conversations ends with tokens {found}, with another cache it ended with "
                f"{known[turn]}: no speed is shown for wrong results"
            )
        return taken

    @contextmanager
    def _tiers(self, cache: int, heat: NDArray[np.int64], groups: int = 1) -> Iterator[LoadedTiers]:
        """Seats for the hottest, threads for the rest."""
        device = self.memory.device
        store = self.memory.store(seats_of(heat, cache))
        waits = self.plan.waits_in_stream
        tiers = make_tiers(store, self._ranks, device, self.pool, waits_in_stream=waits, groups=groups)
        try:
            yield LoadedTiers(store, tiers, self.pool)
        finally:
            tiers.stop()  # whatever is in flight ends
            if device.type == "cuda":
                torch.cuda.synchronize()
            tiers.close()

    @property
    def _settings(self) -> EngineSettings:
        """Who follows windows, as the engine has it."""
        return EngineSettings(pcie_share=self.plan.pcie_share, expert_swaps=self.plan.with_swaps)

    @property
    def _ranks(self) -> int:
        return max(layer.mlp.experts_per_token for layer in self.model.layers if isinstance(layer.mlp, SparseMlp))


def needed_bytes(model: DeviceModel, slots: int, plan: TierPlan, counts: WindowCounts, groups: int = 1) -> TierBytes:
    """What a window of every group with these counts reads and writes; all layers' experts have one size."""
    sparse = [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMlp)]
    size = sparse[0].blobs.layout.total_bytes
    dense = window_bytes(model, slots // groups, plan.context, plan.kv_kind, [0] * len(sparse)).total
    return TierBytes(groups * dense, counts.hits * size, counts.misses * size)
