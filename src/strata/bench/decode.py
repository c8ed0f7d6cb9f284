"""Tokens a second of one model of random weights in memory, decoded by a stage's graphs, beside what memory allows.

Knows how conversations are made up and when a speed may be shown: only if every window gave a token to every
conversation, and one conversation the same tokens alone and in company.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from strata.bench.kernel_profile import KernelTime, kernels_by_layer, profile_each, profile_kernels
from strata.bench.spread import Spread
from strata.bench.window_bytes import WindowBytes, window_bytes
from strata.engine.graphs import WindowGraphs
from strata.engine.stage import Stage, StageSizes, Variant, bucket_of
from strata.engine.stage_profile import StageProfile
from strata.errors import EngineError
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import GOES_ON, NO_ERROR, read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.models.device.description import DeviceModel
from strata.types import ProgressCallback

GATE_WINDOWS = 4
PROFILED_WINDOWS = 4
NO_END = 1 << 30  # tokens that a reply may have
STAGE = "decoding"


@dataclass(frozen=True)
class DecodePlan:
    """What is measured of a model that is there."""

    contexts: tuple[int, ...] = (1024, 30_000)
    slots: tuple[int, ...] = (1, 2, 4, 8)
    rounds: int = 5
    windows: int = 32  # of one turn
    with_profile: bool = False  # also the time of every step
    seed: int = 0


@dataclass(frozen=True)
class DecodeSpeed:
    """One number of conversations at one length. What only a card tells is None elsewhere."""

    context: int
    slots: int
    window_ms: Spread
    tokens_per_second: Spread
    needed: WindowBytes
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


def measure_decode(
    model: DeviceModel,
    plan: DecodePlan,
    copy_gb_per_s: float | None,
    on_progress: ProgressCallback | None = None,
) -> list[DecodeSpeed]:
    """Run the plan in rounds over all contexts and slots in turn. Raises EngineError if the gate does not hold.

    copy_gb_per_s: what copying inside the card gave; None where there is no card.
    """
    runs = [Conversations.open(model, plan, context) for context in plan.contexts]
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
    return [_speed(run, slots, taken[run.context, slots], plan, copy_gb_per_s) for run, slots in turns]


def _speed(
    run: "Conversations", slots: int, seconds: Sequence[float], plan: DecodePlan, copy_gb_per_s: float | None
) -> DecodeSpeed:
    needed = window_bytes(run.stage.model, slots, run.context)
    kernels = run.kernels(slots) if copy_gb_per_s is not None else ()
    return DecodeSpeed(
        run.context,
        slots,
        Spread.of([1e3 * each for each in seconds]),
        Spread.of([slots / each for each in seconds]),
        needed,
        limit_ms=None if copy_gb_per_s is None else needed.total / copy_gb_per_s / 1e6,
        kernels_a_window=sum(kernel.launches for kernel in kernels) if kernels else None,
        kernels_ms=sum(kernel.microseconds for kernel in kernels) / 1e3 if kernels else None,
        kernels=kernels,
        layer_kernels=run.layer_kernels(slots) if kernels else {},
        profile=run.profile(slots) if plan.with_profile else (),
    )


@dataclass
class Conversations:
    """A stage whose slots hold made-up conversations of one length."""

    stage: Stage
    context: int
    run: Callable[[Variant, int], None]
    _serial: int = field(default=0)

    @classmethod
    def open(cls, model: DeviceModel, plan: DecodePlan, context: int) -> "Conversations":
        """A stage with the most slots of the plan, filled, its windows captured where there is a card."""
        most, rows = max(plan.slots), max(plan.windows, GATE_WINDOWS, PROFILED_WINDOWS)
        stage = Stage(model, StageSizes(most, context + 2 * rows), tuple({bucket_of(slots) for slots in plan.slots}))
        fill_state(stage, plan.seed)
        return cls(stage, context, WindowGraphs(stage).run)

    def begin(self, slots: int) -> None:
        """Put the first slots behind `context` rows, each with a token of its own."""
        for slot in range(slots):
            token = 1 + 7919 * slot % (self.stage.vocabulary - 1)
            self.stage.set_reply(slot, ReplyStart(self.context, token, NO_END, (), ChoiceOptions()))
        self._serial += 1
        self.stage.set_plan(self._serial, [PlannedPart(slot) for slot in range(slots)])

    def window(self, slots: int) -> None:
        """One more token for each of the first slots."""
        self.run(self.stage.window_variant(range(slots)), self.stage.bucket_for(slots))

    def decode(self, slots: int, windows: int) -> float:
        """Seconds of some windows one behind the other. Raises EngineError if one gave no token."""
        self.begin(slots)
        self.stage.wait()
        begin = time.perf_counter()
        for _ in range(windows):
            self.window(slots)
        self.stage.wait()
        taken = time.perf_counter() - begin
        self.tokens(slots)
        return taken

    def tokens(self, slots: int) -> list[int]:
        """What the last window gave. Raises EngineError if that is not one token for each of the first slots."""
        results = self.stage.results
        words = self.stage.to_host(results.words).tolist()
        serial, parts = read_results(words, results.segments, results.most_drafts)
        good = [len(part.tokens) == 1 and (part.reason, part.error) == (GOES_ON, NO_ERROR) for part in parts[:slots]]
        if serial != self._serial or not all(good):
            raise EngineError(
                f"a window of {slots} slots at {self.context:,} tokens gave {sum(good)} tokens: no speed is shown for "
                "wrong results"
            )
        return [part.tokens[0] for part in parts[:slots]]

    def check(self, slots: int) -> None:
        """Raises EngineError unless the first slot's tokens are the same alone and beside the others."""
        saved = self.stage.state.save(0, self.context)
        found = []
        for count in (1, slots):
            self.stage.state.restore(0, saved)
            self.begin(count)
            chosen = []
            for _ in range(GATE_WINDOWS):
                self.window(count)
                chosen.append(self.tokens(count)[0])
            found.append(chosen)
        if found[0] != found[1]:
            raise EngineError(
                f"at {self.context:,} tokens one conversation goes on with {found[0]} alone and with {found[1]} beside "
                f"{slots - 1} others: no speed is shown for wrong results"
            )

    def kernels(self, slots: int) -> tuple[KernelTime, ...]:
        """The kernels of a window."""
        self.begin(slots)
        return profile_kernels(lambda: self.window(slots), PROFILED_WINDOWS)

    def layer_kernels(self, slots: int) -> dict[str, dict[int, int]]:
        """The kernels of a window's layers by their kind."""
        self.begin(slots)
        program = self.stage.launches(self.stage.window_variant(range(slots)), self.stage.bucket_for(slots))
        return kernels_by_layer(program, [len(each) for each in profile_each([launch.run for launch in program])])

    def profile(self, slots: int) -> tuple[str, ...]:
        """The table of a window's steps."""
        profile, bucket = StageProfile(self.stage), self.stage.bucket_for(slots)
        self.begin(slots)
        for _ in range(PROFILED_WINDOWS):
            profile.run(self.stage.window_variant(range(slots)), bucket)
        self.tokens(slots)
        return tuple(profile.as_lines())


def fill_state(stage: Stage, seed: int) -> None:
    """Random values of a usual size in every slot, as if `context` rows had been read."""
    state = stage.state
    generator = torch.Generator(stage.device).manual_seed(seed)
    for tensor in (state.keys, state.values, state.raw, state.pooled, state.conv_tail, state.ngram_tail):
        tensor.normal_(generator=generator)
    state.delta.normal_(std=0.1, generator=generator)
    state.history.random_(1, stage.vocabulary, generator=generator)


def speed_as_json(speed: DecodeSpeed) -> dict[str, Any]:
    """A speed as plain values, with what follows from it."""
    return {**asdict(speed), "needed_bytes": speed.needed.total, "share": speed.share, "gap_us": speed.gap_us}


def _report(on_progress: ProgressCallback | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(STAGE, done, total)
