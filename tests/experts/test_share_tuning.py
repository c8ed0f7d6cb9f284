"""The share follows what both sides did: after 48, 96 and 192 windows, reads not counted, and says what it found."""

from collections.abc import Callable

import pytest

from strata.experts.share import FixedCosts, Rates, share_table
from strata.experts.share_refining import REFINED_AT, TRIED_WINDOWS, tried_table
from strata.experts.share_tuning import ShareTuner, Sizes
from strata.experts.streams import PlainStreams, Streams
from tests.experts.late_streams import LateStreams
from tests.experts.missing_machine import BLOB, MissingMachine

GB = 10**9
COSTS, SIZES = FixedCosts(12e-6, 2e-6), Sizes(BLOB, 10)
H200 = Rates(133.0 * GB, 46.5 * GB, 112.0 * GB, 41.0 * GB)
MACHINES = {
    "H200": H200,
    "slow link": Rates(80.0 * GB, 12.0 * GB, 70.0 * GB, 11.0 * GB),
    "slow CPU": Rates(20.0 * GB, 50.0 * GB, 15.0 * GB, 45.0 * GB),
    "one memory for both": Rates(50.0 * GB, 50.0 * GB, 25.0 * GB, 25.0 * GB),
}
# What was believed at load of each of the four rates, in parts of the true one.
STARTS = {
    "right": (1.0, 1.0, 1.0, 1.0),
    "CPU beside the link disturbed": (0.92, 1.0, 0.69, 1.0),
    "CPU beside the link much disturbed": (1.0, 1.0, 0.4, 1.0),
    "both at once disturbed": (1.0, 1.0, 0.5, 0.6),
    "link disturbed": (1.0, 0.5, 1.0, 0.5),
    "CPU disturbed": (0.5, 1.0, 0.5, 1.0),
}


def believed(true: Rates, parts: tuple[float, float, float, float]) -> Rates:
    cpu, link = true.cpu_alone * parts[0], true.link_alone * parts[1]
    return Rates(cpu, link, min(cpu, true.cpu_beside * parts[2]), min(link, true.link_beside * parts[3]))


def run(
    tiers: MissingMachine,
    windows: int,
    say: Callable[[str], None],
    start: Rates = H200,
    reads: int = 0,
    streams: Streams | None = None,
) -> ShareTuner:
    tuner = ShareTuner(tiers, streams or PlainStreams(), start, COSTS, SIZES, say)
    for _ in range(reads):
        tuner.before_launch(True)
    for _ in range(windows):
        tuner.before_launch(False)
        tiers.window()
    return tuner


def test_the_first_table_is_that_of_the_measured_rates() -> None:
    tiers = MissingMachine(H200, COSTS)
    run(tiers, 0, print)
    assert tiers.tables == [share_table(H200, BLOB, 10, COSTS).tolist()]


@pytest.mark.parametrize("miss_rate", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("true", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("parts", STARTS.values(), ids=STARTS)
def test_the_last_table_is_nearly_the_best_whatever_was_measured_at_load(
    parts: tuple[float, float, float, float], true: Rates, miss_rate: float
) -> None:
    tiers = MissingMachine(true, COSTS, miss_rate=miss_rate, noise=0.05)
    tuner = run(tiers, REFINED_AT[-1] + 2, lambda line: None, believed(true, parts))
    assert tiers.later_end(tiers.tables[-1]) <= 1.07 * tiers.best_end()
    assert tuner.rates.cpu_alone <= 1.1 * true.cpu_alone + 1
    assert tuner.rates.link_alone <= 1.1 * true.link_alone + 1


def test_a_card_that_was_given_nothing_by_a_disturbed_measurement_gets_its_part() -> None:
    """As an H200 was with 5 of 10 experts missing: 115 GB/s for both at once at load, 147 in truth."""
    said: list[str] = []
    tiers = MissingMachine(H200, COSTS, noise=0.05)
    tuner = run(tiers, REFINED_AT[-1] + 2, said.append, Rates(111.6 * GB, 46.4 * GB, 66.0 * GB, 36.0 * GB))
    assert tiers.tables[0][5] == 0
    assert tiers.tables[-1][5] == 1
    assert tuner.rates.cpu_beside == pytest.approx(H200.cpu_beside, rel=0.1)
    assert tuner.rates.cpu_alone <= 1.1 * 111.6 * GB + 1
    assert [line.split(":")[0] for line in said] == [f"after {count} windows" for count in REFINED_AT]


def test_both_sides_are_tried_for_a_few_windows_before_each_look() -> None:
    tiers = MissingMachine(H200, COSTS)
    used: list[list[int]] = []
    cpu_only = Rates(133.0 * GB, 12.0 * GB, 40.0 * GB, 11.0 * GB)
    tuner = ShareTuner(tiers, PlainStreams(), cpu_only, COSTS, SIZES, print)
    for _ in range(REFINED_AT[0]):
        tuner.before_launch(False)
        used.append(tiers.tables[-1])
        tiers.window()
    first, tried = tiers.tables[:2]
    assert first[2:10] == [0] * 8
    assert tried == tried_table(share_table(cpu_only, BLOB, 10, COSTS)).tolist()
    begin = REFINED_AT[0] - TRIED_WINDOWS - 1  # windows that were launched before
    assert used == [first] * begin + [tried] * (REFINED_AT[0] - begin)


def test_where_hardly_anything_can_be_read_in_place_the_link_keeps_its_rate() -> None:
    """With one of ten experts missing few layers miss two, and the others' time would be taken for the link's."""
    for miss_rate, is_kept in ((0.11, True), (0.3, False)):
        tiers = MissingMachine(Rates(133.0 * GB, 5.0 * GB, 112.0 * GB, 4.0 * GB), COSTS, miss_rate=miss_rate)
        tuner = run(tiers, REFINED_AT[-1] + 2, print)
        assert (tuner.rates.link_beside == H200.link_beside) == is_kept


def test_reads_are_no_windows() -> None:
    said: list[str] = []
    run(MissingMachine(H200, COSTS), REFINED_AT[0] - 1, said.append, reads=500)
    assert said == []


def test_where_the_stream_waits_for_the_cpu_the_link_keeps_its_rate() -> None:
    """The time up to collecting then holds the CPU's, too."""
    slow = Rates(60.0 * GB, 10.0 * GB, 50.0 * GB, 9.0 * GB)
    tuner = run(MissingMachine(slow, COSTS, waits_in_stream=True), REFINED_AT[-1] + 2, print)
    assert tuner.rates.link_beside == H200.link_beside
    assert tuner.rates.cpu_beside < 70 * GB


def test_a_refinement_that_comes_due_while_another_is_under_way_comes_behind_it() -> None:
    said: list[str] = []
    tiers, streams = MissingMachine(H200, COSTS), LateStreams()
    tuner = run(tiers, REFINED_AT[0] + 5, said.append, streams=streams)
    assert said == []  # the card has not come to the first copy
    assert tiers.tables[-1] == tried_table(share_table(H200, BLOB, 10, COSTS)).tolist()  # so both are still tried
    for _ in range(3):
        while streams.main:
            assert streams.advance(streams.main)
        tuner.before_launch(False)
        tiers.window()
    assert [line.split(":")[0] for line in said] == [f"after {REFINED_AT[0] + 6} windows"]
