"""Conversations that nobody had, in the slots of a stage: random state of one length, decoded window after window.

Knows how they are made up and when a speed may be shown: only if every window gave a token to every conversation, and
one conversation the same tokens alone and in company.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from strata.bench.kernel_profile import KernelTime, kernels_by_layer, profile_each, profile_kernels
from strata.bench.routed_windows import RoutedWindows, experts_of_a_layer, record_window
from strata.engine.flights import in_flight, land, launching
from strata.engine.graphs import WindowGraphs, warm_up
from strata.engine.stage import Stage, StageSizes, Variant, bucket_of
from strata.engine.stage_profile import StageProfile
from strata.errors import EngineError
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import GOES_ON, NO_ERROR, read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from strata.models.device.description import DeviceModel
from strata.quant.cell_codes import MOST_LEVEL4, MOST_LEVEL8, CellKind, CellRows

GATE_WINDOWS = 4
PROFILED_WINDOWS = 4
MOST_AHEAD = 1  # windows behind the one that is waited for
NO_END = 1 << 30  # tokens that a reply may have


@dataclass(frozen=True)
class ConversationPlan:
    """What a stage is to have room for."""

    slots: tuple[int, ...]  # numbers of conversations that share windows
    context: int  # tokens of each
    windows: int  # the most that run one behind the other
    seed: int = 0
    kv_kind: CellKind = CellKind.BF16
    kv_resident: int = 0  # cells of a slot that the card keeps while main memory has all; 0: all lie on the card


@dataclass
class Conversations:
    """A stage whose slots hold made-up conversations of one length."""

    stage: Stage
    context: int
    run: Callable[[Variant, int], None]
    first: int = 0  # slot of the stage in which the conversations begin
    _serial: int = field(default=0)
    _in_flight: deque[torch.cuda.Event | None] = field(default_factory=deque)  # behind each window; None on the CPU

    @classmethod
    def open(
        cls,
        model: DeviceModel,
        plan: ConversationPlan,
        *,
        is_captured: bool = True,
        like: "Conversations | None" = None,
        beside: "Conversations | None" = None,
    ) -> "Conversations":
        """A stage with the most slots of the plan, filled.

        is_captured: windows are graphs where there is a card; else they are launched op by op. like: the same
        conversations as these have now, in a stage of the same sizes. beside: the very same ones, whose windows may run
        at the same time in other slots.
        """
        rows = max(plan.windows, GATE_WINDOWS, PROFILED_WINDOWS)
        resident = plan.kv_resident
        sizes = StageSizes(max(plan.slots), plan.context + 2 * rows, kv_kind=plan.kv_kind, kv_resident=resident)
        buckets = tuple({bucket_of(slots) for slots in plan.slots})
        stage = Stage(model, sizes, buckets, beside=None if beside is None else beside.stage)
        if like is None and beside is None:
            fill_state(stage, plan.seed)
        elif like is not None:
            for slot in range(sizes.slots):
                stage.state.restore(slot, like.stage.state.save(slot, stage.state.cells))
        if is_captured:
            return cls(stage, plan.context, WindowGraphs(stage).run)
        if stage.device.type == "cuda":
            warm_up(stage)
        return cls(stage, plan.context, stage.run)

    def begin(self, slots: int) -> None:
        """Put the first slots behind `context` rows, each with a token of its own."""
        for slot in self._numbers(slots):
            token = 1 + 7919 * slot % (self.stage.vocabulary - 1)
            self.stage.set_reply(slot, ReplyStart(self.context, token, NO_END, (), ChoiceOptions()))
        self._serial += 1
        self.stage.set_plan(self._serial, [PlannedPart(slot) for slot in self._numbers(slots)])

    def window(self, slots: int) -> None:
        """One more token for each of the first slots, behind what was launched before; see `land_due`."""
        self.launch(slots)
        self.land_due()

    def launch(self, slots: int) -> None:
        """The same without waiting for anything."""
        has_tiers, is_gpu = self.stage.model.tiers is not None, self.stage.device.type == "cuda"
        with launching(self.stage):
            self.run(self.stage.window_variant(self._numbers(slots)), self.stage.bucket_for(slots))
            event = torch.cuda.Event() if is_gpu and has_tiers else None
            if event is not None:
                event.record()
        self._in_flight.append(event)

    def land_due(self) -> None:
        """Where experts lie in tiers at most one window is ahead of the one that is waited for, as in the engine: who
        moves experts would else decide by counts from long ago."""
        while self.stage.model.tiers is not None and len(self._in_flight) > MOST_AHEAD:
            self._land_first()

    def land(self) -> None:
        """Wait for what was launched. Raises EngineError if experts on the CPU failed."""
        self.stage.wait()
        while self._in_flight:
            self._land_first()

    def _numbers(self, slots: int) -> range:
        return range(self.first, self.first + slots)

    def _land_first(self) -> None:
        event = self._in_flight.popleft()
        if event is not None:
            event.synchronize()
        land(self.stage)

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
        self.land()
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

    def first_tokens(self, slots: int) -> list[list[int]]:
        """Of every slot what its first windows give."""
        self.begin(slots)
        chosen = []
        for _ in range(GATE_WINDOWS):
            self.window(slots)
            chosen.append(self.tokens(slots))
        return [list(tokens) for tokens in zip(*chosen, strict=True)]

    def check(self, slots: int) -> None:
        """Raises EngineError unless the first slot's tokens are the same alone and beside the others."""
        saved = self.stage.state.save(0, self.context)
        found = []
        for count in (1, slots):
            self.stage.state.restore(0, saved)
            found.append(self.first_tokens(count)[0])
        if found[0] != found[1]:
            raise EngineError(
                f"at {self.context:,} tokens one conversation goes on with {found[0]} alone and with {found[1]} beside "
                f"{slots - 1} others: no speed is shown for wrong results"
            )

    def routed(self, slots: int, windows: int) -> RoutedWindows:
        """What some windows took."""
        self.begin(slots)
        variant, bucket = self.stage.window_variant(self._numbers(slots)), self.stage.bucket_for(slots)
        with in_flight(self.stage):
            taken = [record_window(self.stage, variant, bucket, slots) for _ in range(windows)]
        self.tokens(slots)
        ids = self.stage.to_host(torch.stack(taken)).numpy()
        return RoutedWindows.of_choices(ids, experts_of_a_layer(self.stage))

    def kernels(self, slots: int) -> tuple[KernelTime, ...]:
        """The kernels of a window."""
        self.begin(slots)
        kernels = profile_kernels(lambda: self.window(slots), PROFILED_WINDOWS)
        self.land()
        return kernels

    def layer_kernels(self, slots: int) -> dict[str, dict[int, int]]:
        """The kernels of a window's layers by their kind."""
        self.begin(slots)
        program = self.stage.launches(self.stage.window_variant(self._numbers(slots)), self.stage.bucket_for(slots))
        with in_flight(self.stage):
            kernels = profile_each([launch.run for launch in program])
        return kernels_by_layer(program, [len(each) for each in kernels])

    def profile(self, slots: int) -> tuple[str, ...]:
        """The table of a window's steps."""
        profile, bucket = StageProfile(self.stage), self.stage.bucket_for(slots)
        self.begin(slots)
        with in_flight(self.stage):
            for _ in range(PROFILED_WINDOWS):
                profile.run(self.stage.window_variant(self._numbers(slots)), bucket)
        self.tokens(slots)
        return tuple(profile.as_lines())


def fill_state(stage: Stage, seed: int) -> None:
    """Random values of a usual size in every slot, as if `context` rows had been read."""
    state = stage.state
    generator = torch.Generator(stage.device).manual_seed(seed)
    for cells in (state.keys, state.values):
        _fill_cells(cells, generator)
    for tensor in (state.raw, state.pooled, state.conv_tail, state.ngram_tail):
        tensor.normal_(generator=generator)
    state.delta.normal_(std=0.1, generator=generator)
    state.history.random_(1, stage.vocabulary, generator=generator)


def _fill_cells(cells: CellRows, generator: torch.Generator) -> None:
    """Normal values, or evenly spread levels under scales that give them the same size."""
    if cells.scales is None:
        cells.codes.normal_(generator=generator)
        return
    is_wide = cells.codes.dtype == torch.int8
    first, end = (-MOST_LEVEL8, MOST_LEVEL8 + 1) if is_wide else (0, 256)
    cells.codes.random_(first, end, generator=generator)
    cells.scales.fill_(math.sqrt(3) / (MOST_LEVEL8 if is_wide else MOST_LEVEL4))
