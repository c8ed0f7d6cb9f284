"""The share follows what both sides did: after 48, 96 and 192 windows, reads not counted, and says what it found."""

from collections.abc import Callable

import pytest
import torch

from strata.experts.doorbell import DoorbellCounters
from strata.experts.share import REFINED_AT, Rates, share_table
from strata.experts.share_tuning import ShareTuner
from strata.experts.streams import PlainStreams, Streams
from strata.experts.tiers import TierCounts
from strata.kernels.expert_plan.tables import Mailbox, PlanState
from tests.experts.late_streams import LateStreams

GB = 10**9
BLOB, MOST = 1 << 20, 40
BELIEVED = Rates(100.0 * GB, 50.0 * GB, 80.0 * GB, 40.0 * GB)


class Tiers:
    """Counters that grow by what a window of true rates does."""

    def __init__(self, cpu_rate: float, link_rate: float, rings: int = 1, *, waits_in_stream: bool = False) -> None:
        self.mailbox = Mailbox.create(1, 1, 32, has_gate=waits_in_stream)
        self.state = PlanState.create("cpu")
        self.tables: list[list[int]] = []
        self._rates, self._rings = (cpu_rate, link_rate), rings
        self._windows = 0

    def window(self) -> None:
        self._windows += 1
        self.state.times[0] += round(10 * BLOB / self._rates[1] * 1e9)

    def counts(self) -> TierCounts:
        experts = self._windows * 20
        cpu = DoorbellCounters(
            self._windows * self._rings, experts, experts * BLOB, round(experts * BLOB / self._rates[0] * 1e9)
        )
        return TierCounts(0, self._windows * 10, experts, cpu)

    def set_share(self, table: torch.Tensor) -> None:
        self.tables.append(table.tolist())


def run(
    tiers: Tiers, windows: int, say: Callable[[str], None], reads: int = 0, streams: Streams | None = None
) -> ShareTuner:
    tuner = ShareTuner(tiers, streams or PlainStreams(), BELIEVED, BLOB, MOST, say)
    for _ in range(reads):
        tuner.before_launch(True)
    for _ in range(windows):
        tuner.before_launch(False)
        tiers.window()
    return tuner


def test_the_first_table_is_that_of_the_measured_rates() -> None:
    tiers = Tiers(80 * GB, 40 * GB)
    run(tiers, 0, print)
    assert tiers.tables == [share_table(BELIEVED, BLOB, MOST).tolist()]


def test_after_three_refinements_the_table_is_near_that_of_the_true_rates() -> None:
    said: list[str] = []
    tiers = Tiers(40 * GB, 40 * GB)  # the CPU is half as fast as was believed
    tuner = run(tiers, REFINED_AT[-1] + 2, said.append)
    assert [line.split(":")[0] for line in said] == [f"after {count} windows" for count in REFINED_AT]
    assert len(tiers.tables) == 1 + len(REFINED_AT)
    assert 40 * GB <= tuner.rates.cpu_beside < 45 * GB
    assert tuner.rates.link_beside == pytest.approx(BELIEVED.link_beside, rel=0.01)
    shares = [table[MOST] for table in tiers.tables]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0]


def test_where_hardly_anything_is_read_in_place_the_link_keeps_its_rate() -> None:
    tuner = run(Tiers(80 * GB, 5 * GB, rings=11), REFINED_AT[-1] + 2, print)
    assert tuner.rates.link_beside == BELIEVED.link_beside
    tuner = run(Tiers(80 * GB, 5 * GB, rings=10), REFINED_AT[-1] + 2, print)
    assert tuner.rates.link_beside < BELIEVED.link_beside / 2


def test_reads_are_no_windows() -> None:
    said: list[str] = []
    run(Tiers(80 * GB, 40 * GB), REFINED_AT[0] - 1, said.append, reads=500)
    assert said == []


def test_where_the_stream_waits_for_the_cpu_the_link_keeps_its_rate() -> None:
    """The time up to collecting then holds the CPU's, too."""
    tuner = run(Tiers(40 * GB, 5 * GB, waits_in_stream=True), REFINED_AT[-1] + 2, print)
    assert tuner.rates.link_beside == BELIEVED.link_beside
    assert tuner.rates.cpu_beside < BELIEVED.cpu_beside


def test_a_refinement_that_comes_due_while_another_is_under_way_comes_behind_it() -> None:
    said: list[str] = []
    tiers, streams = Tiers(40 * GB, 40 * GB), LateStreams()
    tuner = run(tiers, REFINED_AT[1] + 5, said.append, streams=streams)
    assert said == []  # the card has not come to the first copy
    for _ in range(4):
        while streams.main:
            assert streams.advance(streams.main)
        tuner.before_launch(False)
    assert [line.split(":")[0] for line in said] == [
        f"after {REFINED_AT[0]} windows",
        f"after {REFINED_AT[1] + 6} windows",
    ]
