"""Arrivals, cancels and turns in any order, in every read mode: who ends, with what, and after how long."""

import itertools
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strata.engine.messages import Drawn, Ended, FromEngine
from strata.engine.request import TokenRequest
from strata.engine.steps import ParkingSpace, Window
from strata.scheduler.due import Limits
from strata.scheduler.read_modes import MOST_GIVING_WAY, ReadMode, ReadRule, run_end
from strata.scheduler.reads import PromptRead
from strata.scheduler.scheduler import Scheduler
from strata.types import FinishReason
from tests.scheduler.simulated import Costs, SimulatedEngine, reply_token, request

CHUNK, LAYERS = 64, 3
GAP = 0.1  # seconds; a layer takes 11 ms and a window 18 at most
RULES = st.one_of(
    st.builds(ReadRule, st.just(ReadMode.LAYERS), decode_share=st.sampled_from([None, 0.5])),
    st.builds(ReadRule, st.just(ReadMode.WHOLE), is_piped=st.booleans()),
    st.builds(
        ReadRule,
        st.just(ReadMode.PIECES),
        piece_rows=st.sampled_from([CHUNK, 3 * CHUNK]),
        is_piped=st.booleans(),
        least_windows=st.sampled_from([0.0, 0.03]),
        most_windows=st.sampled_from([0.05, float("inf")]),
    ),
)


class AnyOrder(RuleBasedStateMachine):
    """Clients of one scheduler over an engine that holds it to the contract of steps."""

    @initialize(
        reads=RULES,
        slots=st.integers(1, 4),
        in_runs=st.booleans(),
        groups=st.integers(1, 3),
        parked=st.sampled_from([0, 900, 5000]),
        clock_jumps=st.booleans(),
    )
    def start(self, reads: ReadRule, slots: int, in_runs: bool, groups: int, parked: int, clock_jumps: bool) -> None:
        groups = min(groups, slots)
        self.engine = SimulatedEngine(Costs(), groups, CHUNK if in_runs or reads.is_piped else None)
        self.engine.layers, self.engine.parking = LAYERS, ParkingSpace(parked, fixed=100, per_token=1.0)
        self.engine.refuses_parking = lambda: len(self.engine.steps) % 3 == 0
        self.rule, self.clock_jumps, self.set_back = reads, clock_jumps, 0.0
        limits = Limits(slots, CHUNK, GAP, reads, drafts=2, groups=groups)
        self.scheduler = Scheduler(self.engine, limits, lambda: self.engine.now - self.set_back, self.engine.sleep)
        self.asked: list[TokenRequest] = []
        self.tokens: list[list[int]] = []
        self.at: list[list[float]] = []
        self.ended: dict[int, Ended] = {}
        self.cancelled: set[int] = set()

    @rule(length=st.sampled_from([1, 63, 64, 65, 130, 700]), shared=st.integers(0, 400), reply=st.integers(1, 30))
    def ask(self, length: int, shared: int, reply: int) -> None:
        """Half of the prompts begin as another conversation did."""
        start: Sequence[int] = ()
        if self.asked and shared % 2:
            number = shared % len(self.asked)
            start = (*self.asked[number].prompt, *self.tokens[number])[:shared]
        self.asked.append(request((*start, *range(10_000 * len(self.asked), 10_000 * len(self.asked) + length)), reply))
        self.tokens.append([])
        self.at.append([])
        self.scheduler.submit(len(self.asked) - 1, self.asked[-1])

    @precondition(lambda self: self.asked)
    @rule(number=st.integers(0, 100), keeps=st.booleans())
    def cancel(self, number: int, keeps: bool) -> None:
        number %= len(self.asked)
        self.cancelled.add(number)
        self.scheduler.cancel(number, len(self.tokens[number]) if keeps else None)

    @rule(count=st.integers(1, 40))
    def turns(self, count: int) -> None:
        for _ in range(count):
            before = len(self.engine.steps)
            for event in self.scheduler.turn():
                self.take(event)
            ran_window = any(isinstance(step, Window) for step in self.engine.steps[before:])
            if ran_window and self.rule.mode is not ReadMode.LAYERS:
                self.no_prompt_is_in_a_run()

    @precondition(lambda self: self.clock_jumps)
    @rule(seconds=st.sampled_from([0.05, 3600.0]))
    def set_clock_back(self, seconds: float) -> None:
        self.set_back += seconds

    def take(self, event: FromEngine) -> None:
        if isinstance(event, Drawn):
            number, drawn = event.request_id, self.tokens[event.request_id]
            assert number not in self.ended, "nothing comes behind the end"
            drawn += [draw.token_id for draw in event.draws]
            self.at[number].append(self.engine.now)
            assert drawn[-1] == reply_token(self.asked[number], len(drawn) - 1)
        elif isinstance(event, Ended):
            assert event.request_id not in self.ended, "a request ends once"
            self.ended[event.request_id] = event

    def no_prompt_is_in_a_run(self) -> None:
        """A window has just run: every prompt that is being read stands where one of its runs ends."""
        for read in self.under_way():
            assert self.engine.slots[read.slot.index].piece is None
            row = read.request.cached
            while row < read.request.read_rows:
                row = run_end(self.rule, row, read.total, CHUNK, self.engine.reads_runs)
            assert row == read.request.read_rows

    def under_way(self) -> list[PromptRead]:
        reads = self.scheduler._reads
        return [*reads._aside, *([reads.current] if reads.current else [])]

    @invariant()
    def reads_are_of_requests_that_have_slots(self) -> None:
        under_way = self.under_way()
        assert all(read.times_given_way <= MOST_GIVING_WAY for read in under_way)
        reading = {slot.slot for slot in self.scheduler.statistics().slots if slot.phase == "reading"}
        assert reading == {read.slot.index for read in under_way}
        assert not (self.rule.is_uncut and len(under_way) > 1)

    def teardown(self) -> None:
        """Everybody is served within as many turns as all of their steps and windows are, and no slot is lost."""
        if not hasattr(self, "scheduler"):
            return
        steps = sum(LAYERS * (len(asked.prompt) // CHUNK + 2) for asked in self.asked)
        replies = sum(asked.options.max_tokens or 0 for asked in self.asked)
        turns = 0
        while self.scheduler.has_work:
            self.turns(1)
            turns += 1
            assert turns <= 2 * steps + replies + 4 * len(self.asked), "somebody starves"
        for number, asked in enumerate(self.asked):
            reason = self.ended[number].reason
            assert reason is FinishReason.LENGTH or (reason is FinishReason.CANCELLED and number in self.cancelled)
            assert reason is FinishReason.CANCELLED or len(self.tokens[number]) == asked.options.max_tokens
        assert {slot.phase for slot in self.scheduler.statistics().slots} == {"idle"}
        if self.rule.mode is ReadMode.LAYERS and not self.set_back:
            gaps = [b - a for at in self.at for a, b in itertools.pairwise(at)]
            assert max(gaps, default=0.0) <= 1.1 * GAP


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
