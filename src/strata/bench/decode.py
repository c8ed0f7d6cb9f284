"""Tokens a second of one model of random weights in memory, decoded by a stage's graphs, beside what memory allows.

Knows turns and what is made of their times; the conversations are in `conversations.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from strata.bench.conversations import ConversationPlan, Conversations
from strata.bench.kernel_profile import KernelTime
from strata.bench.popular_routing import LawfulRouting
from strata.bench.routed_windows import RoutedWindows
from strata.bench.spread import Spread
from strata.bench.window_bytes import WindowBytes, expected_distinct, window_bytes
from strata.models.device.description import DeviceModel
from strata.quant.cell_codes import CellKind
from strata.types import ProgressCallback

ROUTED_WINDOWS = 4  # of a pair, enough to count different experts
POPULAR_WINDOWS = 32  # the same, enough to know the hottest
STAGE = "decoding"


@dataclass(frozen=True)
class DecodePlan:
    """What is measured of a model that is there."""

    contexts: tuple[int, ...] = (1024, 30_000)
    slots: tuple[int, ...] = (1, 2, 4, 8)
    rounds: int = 5
    windows: int = 32  # of one turn
    with_profile: bool = False  # also the time of every step
    routed_windows: int = ROUTED_WINDOWS  # of each pair, whose choices are counted; 2 at least
    seed: int = 0
    is_popular: bool = False  # the model's routers were made for the law of `popular_routing`
    kv_kind: CellKind = CellKind.BF16

    def conversations(self, context: int) -> ConversationPlan:
        """What a stage must have room for."""
        return ConversationPlan(self.slots, context, max(self.windows, self.routed_windows), self.seed, self.kv_kind)


@dataclass(frozen=True)
class DecodeSpeed:
    """One number of conversations at one length. What only a card tells is None elsewhere."""

    context: int
    slots: int
    window_ms: Spread
    tokens_per_second: Spread
    needed: WindowBytes  # with as many experts as windows took
    distinct: float  # different experts of a layer of a window, on average
    expected: float  # as many where all experts are alike
    limit_ms: float | None  # the bytes at the speed of copying inside the card
    kernels_a_window: float | None  # None also where the profiler sees none
    kernels_ms: float | None  # the sum of their own times
    kernels: tuple[KernelTime, ...] = ()
    layer_kernels: dict[str, dict[int, int]] = field(default_factory=dict)  # see `kernels_by_layer`
    profile: tuple[str, ...] = ()  # lines of the table of steps

    @property
    def share(self) -> float | None:
        """Of the limit: 1 is as fast as memory allows."""
        return None if self.limit_ms is None else self.limit_ms / self.window_ms.median

    @property
    def gap_us(self) -> float | None:
        """What a window takes beyond its kernels' own times, for each kernel; below 0 where kernels overlap."""
        if self.kernels_ms is None or not self.kernels_a_window:
            return None
        return 1e3 * (self.window_ms.median - self.kernels_ms) / self.kernels_a_window


@dataclass(frozen=True)
class DecodeResult:
    """All speeds of a plan, and what their windows took."""

    speeds: list[DecodeSpeed]
    hottest_quarter: float  # the share of all choices that a quarter, and half, of the experts get
    hottest_half: float
    law: LawfulRouting | None = None  # what the model's routers were made for; None: for experts that are all alike


def measure_decode(
    model: DeviceModel,
    plan: DecodePlan,
    copy_gb_per_s: float | None,
    on_progress: ProgressCallback | None = None,
) -> DecodeResult:
    """Run the plan in rounds over all contexts and slots in turn. Raises EngineError if the gate does not hold.

    copy_gb_per_s: what copying inside the card gave; None where there is no card.
    """
    runs = [Conversations.open(model, plan.conversations(context)) for context in plan.contexts]
    for run in runs:
        run.check(max(plan.slots))
    turns = [(run, slots) for run in runs for slots in plan.slots]
    taken: dict[tuple[int, int], list[float]] = {(run.context, slots): [] for run, slots in turns}
    total = len(turns) * (plan.rounds + 1)
    for round_ in range(plan.rounds + 1):
        for index, (run, slots) in enumerate(turns):
            _report(on_progress, round_ * len(turns) + index, total)
            seconds = run.decode(slots, plan.windows)
            if round_ > 0:  # the first round warms up
                taken[run.context, slots].append(seconds / plan.windows)
    _report(on_progress, total, total)
    routed = [run.routed(slots, plan.routed_windows) for run, slots in turns]
    speeds = [
        _speed(run, slots, taken[run.context, slots], windows, plan, copy_gb_per_s)
        for (run, slots), windows in zip(turns, routed, strict=True)
    ]
    together = RoutedWindows.joined(routed)
    ranks = round(routed[0].choices / turns[0][1])
    law = LawfulRouting.of(together.experts, ranks, plan.slots) if plan.is_popular else None
    return DecodeResult(speeds, together.share_of_hottest(25), together.share_of_hottest(50), law)


def _speed(
    run: Conversations,
    slots: int,
    seconds: Sequence[float],
    routed: RoutedWindows,
    plan: DecodePlan,
    copy_gb_per_s: float | None,
) -> DecodeSpeed:
    needed = window_bytes(run.stage.model, slots, run.context, plan.kv_kind, routed.distinct)
    kernels = run.kernels(slots) if copy_gb_per_s is not None else ()
    return DecodeSpeed(
        run.context,
        slots,
        Spread.of([1e3 * each for each in seconds]),
        Spread.of([slots / each for each in seconds]),
        needed,
        distinct=fmean(routed.distinct),
        expected=expected_distinct(round(routed.choices / slots), routed.experts, slots),
        limit_ms=None if copy_gb_per_s is None else needed.total / copy_gb_per_s / 1e6,
        kernels_a_window=sum(kernel.launches for kernel in kernels) if kernels else None,
        kernels_ms=sum(kernel.microseconds for kernel in kernels) / 1e3 if kernels else None,
        kernels=kernels,
        layer_kernels=run.layer_kernels(slots) if kernels else {},
        profile=run.profile(slots) if plan.with_profile else (),
    )


def speed_as_json(speed: DecodeSpeed) -> dict[str, Any]:
    """A speed as plain values, with what follows from it."""
    return {**asdict(speed), "needed_bytes": speed.needed.total, "share": speed.share, "gap_us": speed.gap_us}


def _report(on_progress: ProgressCallback | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(STAGE, done, total)
