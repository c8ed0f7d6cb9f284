"""Prompts that are read beside replies and past one another, mode by mode: which steps run, what is told of them."""

import itertools
import logging

import pytest

from strata.engine.messages import Drawn, Ended
from strata.engine.steps import Abandon, Open, Read, Window
from strata.scheduler.due import Limits
from strata.scheduler.read_modes import ReadMode, ReadRule
from strata.scheduler.scheduler import Scheduler
from strata.types import FinishReason
from tests.scheduler.simulated import LAYERS, SimulatedEngine, reply_token, request

CHUNK = 256
PIECES = ReadRule(ReadMode.PIECES, piece_rows=2 * CHUNK)
WHOLE = ReadRule(ReadMode.WHOLE)
RUN = 2 * (0.002 + CHUNK * 0.0005)  # seconds of a piece


def text(first: int, length: int) -> tuple[int, ...]:
    return tuple(range(first * 100_000, first * 100_000 + length))


class Served:
    """A scheduler, its engine, and what its requests got."""

    def __init__(self, rule: ReadRule, slots: int = 4, run_chunks: int | None = None, groups: int = 1) -> None:
        self.engine = SimulatedEngine(groups=groups, run_chunks=run_chunks)
        limits = Limits(slots, CHUNK, rule=rule, groups=groups)
        self.scheduler = Scheduler(self.engine, limits, self.engine.clock, self.engine.sleep)
        self.asked = {}
        self.tokens: dict[int, list[int]] = {}
        self.ended: dict[int, Ended] = {}
        self.first_token: dict[int, float] = {}

    def ask(self, number: int, rows: int, reply: int = 5) -> None:
        self.asked[number] = request(text(number, rows), reply)
        self.tokens[number] = []
        self.scheduler.submit(number, self.asked[number])

    def turn(self) -> None:
        for event in self.scheduler.turn():
            if isinstance(event, Drawn):
                self.tokens[event.request_id] += [draw.token_id for draw in event.draws]
                self.first_token.setdefault(event.request_id, self.engine.now)
            elif isinstance(event, Ended):
                self.ended[event.request_id] = event

    def until_first_token(self, number: int) -> None:
        while number not in self.first_token:
            self.turn()

    def steps(self, count: int) -> None:
        """Turns until so many steps have been run."""
        for _ in range(count):
            self.turn()

    def finish(self) -> None:
        while self.scheduler.has_work:
            self.turn()
        for number, asked in self.asked.items():
            got = self.tokens[number]
            assert got == [reply_token(asked, index) for index in range(len(got))]
            if self.ended[number].reason is FinishReason.LENGTH:
                assert len(got) == asked.options.max_tokens

    def groups_of_steps(self, begin: int = 0) -> list[tuple[str, int]]:
        """Steps in runs of one kind: `read <slot>` or `window`, and how many; opens alone."""
        names = []
        for step in self.engine.steps[begin:]:
            if isinstance(step, Window):
                names.append("window")
            elif isinstance(step, Read):
                names.append(f"read {step.slot} to {step.stop}")
            else:
                names.append(f"{type(step).__name__.lower()} {step.slot}")
        return [(name, len(list(same))) for name, same in itertools.groupby(names)]


def with_streams(served: Served, count: int = 1) -> int:
    """Replies without an end begin; the number of steps they took so far."""
    for number in range(1, count + 1):
        served.ask(number, 5, 10**6)
        served.until_first_token(number)
    while not isinstance(served.engine.steps[-1], Window):
        served.turn()
    return len(served.engine.steps)


def test_whole_runs_are_chunks_on_one_device_and_windows_follow_for_half_of_their_time() -> None:
    served = Served(WHOLE)
    begin = with_streams(served)
    served.ask(9, 600, 1)
    served.until_first_token(9)
    windows = -(-(RUN / 2 * 0.5) // 0.012)  # until the budget is spent
    expected = [("open 1", 1), ("read 1 to 256", LAYERS), ("window", windows), ("read 1 to 512", LAYERS)]
    assert served.groups_of_steps(begin) == [*expected, ("window", windows), ("read 1 to 600", LAYERS)]


def test_a_piece_is_read_without_a_window_and_followed_by_its_budget(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(PIECES)
    begin = with_streams(served)
    served.ask(9, 1100, 1)
    with caplog.at_level(logging.INFO, "strata.scheduler"):
        served.until_first_token(9)
    windows = -(-RUN * 0.5 // 0.012)
    reads = [(f"read 1 to {stop}", LAYERS) for stop in (256, 512, 768, 1024, 1100)]
    between = ("window", windows)
    assert served.groups_of_steps(begin) == [("open 1", 1), *reads[:2], between, *reads[2:4], between, *reads[4:]]
    assert caplog.messages == [
        *["run in slot 1: 512 rows in 260 ms, then 130 ms of windows"] * 2,
        "run in slot 1: 76 rows in 40 ms, then 0 ms of windows",
    ]


@pytest.mark.parametrize(("least", "most", "windows"), [(0.0, 0.05, 5), (0.5, float("inf"), 42), (0.0, 0.0, 0)])
def test_the_budget_of_a_piece_is_capped_and_floored(least: float, most: float, windows: int) -> None:
    served = Served(ReadRule(ReadMode.PIECES, 2 * CHUNK, least_windows=least, most_windows=most))
    begin = with_streams(served)
    served.ask(9, 600, 1)
    served.until_first_token(9)
    assert dict(served.groups_of_steps(begin)).get("window", 0) == windows


def test_pieces_are_taken_alone_too_and_a_budget_that_nobody_takes_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(PIECES)
    served.ask(9, 1100, 1)
    with caplog.at_level(logging.INFO, "strata.scheduler"):
        served.finish()
    assert [count for name, count in served.groups_of_steps() if name == "window"] == []
    assert [message.partition(", then ")[2] for message in caplog.messages] == ["0 ms of windows"] * 3
    assert served.scheduler.statistics().read_runs == 3


def test_a_read_behind_another_one_first_grants_one_budget(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(PIECES)
    begin = with_streams(served)
    served.ask(8, 512, 1)
    served.ask(9, 512, 1)
    with caplog.at_level(logging.INFO, "strata.scheduler"):
        served.until_first_token(9)
    windows = -(-RUN * 0.5 // 0.012)
    first = [("open 1", 1), ("read 1 to 256", LAYERS), ("read 1 to 512", LAYERS), ("open 2", 1), ("window", windows)]
    assert served.groups_of_steps(begin) == [*first, ("read 2 to 256", LAYERS), ("read 2 to 512", LAYERS)]
    assert caplog.messages[1] == "lead-in of slot 2: 130 ms of windows, for a run of 512 rows in 260 ms in slot 1"
    assert len(caplog.messages) == 3
    served.steps(3)  # windows come by themselves now, so the next read needs no lead-in
    begin = len(served.engine.steps)
    served.ask(10, 300, 1)
    served.until_first_token(10)
    assert [name for name, _ in served.groups_of_steps(begin)] == ["open 3", "read 3 to 256", "read 3 to 300"]


def test_a_read_that_is_cancelled_leaves_the_next_one_its_lead_in() -> None:
    served = Served(PIECES)
    with_streams(served)
    served.ask(8, 2000, 1)
    served.steps(20)
    served.ask(9, 1100, 1)
    served.scheduler.cancel(8)
    begin = len(served.engine.steps)
    served.until_first_token(9)
    names = served.groups_of_steps(begin)
    read_of_8 = 19 / LAYERS * RUN / 2
    assert names[:3] == [("abandon 1", 1), ("open 2", 1), ("window", -(-read_of_8 * 0.5 // 0.012))]


def test_on_stages_in_groups_a_whole_prompt_is_one_run_and_nobody_passes() -> None:
    served = Served(ReadRule(ReadMode.WHOLE, is_piped=True, decode_share=2.0), run_chunks=CHUNK, groups=2)
    begin = with_streams(served, 2)
    served.ask(8, 5000, 1)
    served.steps(3)
    served.ask(9, 10, 1)
    served.until_first_token(9)
    names = served.groups_of_steps(begin)
    assert names == [("open 2", 1), ("read 2 to 5000", 20 * LAYERS), ("open 3", 1), ("read 3 to 10", LAYERS)]
    served.scheduler.cancel(1)
    served.scheduler.cancel(2)
    served.finish()


def test_pieces_of_stages_are_one_read_each_and_its_chunks_are_told() -> None:
    served = Served(PIECES, run_chunks=CHUNK, groups=2)
    begin = with_streams(served, 3)
    served.ask(9, 1100, 1)
    served.until_first_token(9)
    names = [name for name, _ in served.groups_of_steps(begin)]
    assert names == ["open 3", "read 3 to 512", "window", "read 3 to 1024", "window", "read 3 to 1100"]
    windows = [step.groups for step in served.engine.steps if isinstance(step, Window)]
    assert windows[-1] == {0: 0, 1: 1, 2: 0}
    assert served.scheduler.statistics().prompt_tokens == 1100 + 3 * 5


def test_a_short_prompt_passes_a_long_one_between_two_layers() -> None:
    served = Served(ReadRule())
    served.ask(1, 2000, 3)
    served.steps(1 + LAYERS + 5)
    served.ask(2, 100, 3)
    served.ask(3, 1000, 3)  # more than half of what is left
    served.until_first_token(2)
    assert served.scheduler.statistics().give_ways == 1
    assert [name for name, _ in served.groups_of_steps()][:5] == [
        *["open 0", "read 0 to 256", "read 0 to 512", "open 1", "read 1 to 100"]
    ]
    served.finish()
    assert served.first_token[2] < served.first_token[1] < served.first_token[3]
    assert sum(isinstance(step, Read) and step.stop == 512 and step.slot == 0 for step in served.engine.steps) == LAYERS


@pytest.mark.parametrize(("rule", "passes"), [(WHOLE, "read 0 to 256"), (PIECES, "read 0 to 512")])
def test_a_short_prompt_passes_at_the_end_of_a_run(rule: ReadRule, passes: str) -> None:
    served = Served(rule)
    served.ask(1, 2000, 3)
    served.steps(5)
    served.ask(2, 100, 3)
    served.finish()
    names = [name for name, _ in served.groups_of_steps()]
    assert names[names.index("open 1") - 1] == passes


def test_a_request_gives_way_twice_and_only_if_a_slot_is_idle() -> None:
    served = Served(ReadRule(), slots=2)
    served.ask(1, 4000, 1)
    served.steps(3)
    for number in (2, 3, 4):
        served.ask(number, 50, 1)
    served.finish()
    assert sorted(served.first_token, key=served.first_token.__getitem__) == [2, 3, 1, 4]
    crowded = Served(ReadRule(), slots=1)
    crowded.ask(1, 4000, 1)
    crowded.steps(3)
    crowded.ask(2, 50, 1)
    crowded.finish()
    assert crowded.first_token[1] < crowded.first_token[2]


def test_who_gave_way_first_goes_on_first() -> None:
    served = Served(ReadRule())
    served.ask(1, 8000, 1)
    served.steps(3)
    served.ask(2, 2000, 1)
    served.steps(3)
    served.ask(3, 100, 1)
    served.finish()
    assert sorted(served.first_token, key=served.first_token.__getitem__) == [3, 1, 2]


def test_what_a_slot_holds_counts_for_who_passes() -> None:
    served = Served(ReadRule())
    served.ask(1, 2000, 1)
    served.finish()
    served.ask(2, 1500, 1)
    served.steps(3)
    served.asked[3] = request(text(1, 1990), 1)
    served.tokens[3] = []
    served.scheduler.submit(3, served.asked[3])
    served.finish()
    assert served.first_token[3] < served.first_token[2]
    assert served.ended[3].usage.cached_tokens == 1984


def test_a_read_that_gave_way_is_given_up_when_its_request_is_cancelled() -> None:
    served = Served(ReadRule(), slots=2)
    served.ask(1, 2000, 1)
    served.steps(5)
    served.ask(2, 500, 1)
    served.steps(2)
    served.scheduler.cancel(1)
    begin = len(served.engine.steps)
    served.turn()
    assert served.ended[1].reason is FinishReason.CANCELLED
    assert served.engine.steps[begin:] == [Abandon(0)]
    served.ask(3, 700, 1)
    served.finish()
    assert [type(step) for step in served.engine.steps].count(Abandon) == 1
    assert [step.slot for step in served.engine.steps if isinstance(step, Open)] == [0, 1, 0]


def test_a_read_that_fails_ends_alone_and_the_other_goes_on() -> None:
    served = Served(ReadRule())
    served.engine.fails_at = 2 * 100_000 + 70
    served.ask(1, 2000, 3)
    served.steps(5)
    served.ask(2, 100, 3)
    served.finish()
    assert (served.ended[2].error, served.ended[1].reason) == ("the numbers are not finite", FinishReason.LENGTH)
