"""The share: whole experts so that both sides end early, few to the faster side, and rates that follow what is seen."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import EngineError
from strata.experts.share import (
    DAMPING,
    LEAST_BYTES,
    FixedCosts,
    Measured,
    Rates,
    fixed_share_table,
    refined,
    refinement_in_words,
    share_table,
)

GB = 10**9
BLOB = 2_764_800
H200 = Rates(106 * GB, 50 * GB, 82 * GB, 45 * GB)
FREE = FixedCosts(0.0, 0.0)
SLOW_LINK = Rates(80 * GB, 12 * GB, 70 * GB, 11 * GB)


@st.composite
def rates(draw: st.DrawFn) -> Rates:
    alone = [draw(st.integers(1, 200)) * GB for _ in range(2)]
    beside = [value * draw(st.sampled_from([0.3, 0.6, 0.9, 1.0])) for value in alone]
    return Rates(float(alone[0]), float(alone[1]), *beside)


def end_by_steps(rates: Rates, cpu_bytes: float, link_bytes: float, costs: FixedCosts) -> float:
    """Both sides in small steps of time: whoever has ended no longer slows the other down."""
    now, step = 0.0, 1e-7
    cpu_wait, link_wait = costs.cpu, costs.link
    while cpu_bytes > 0 or link_bytes > 0:
        is_both = cpu_bytes > 0 and link_bytes > 0
        if cpu_bytes > 0:
            if cpu_wait > 0:
                cpu_wait -= step
            else:
                cpu_bytes -= step * (rates.cpu_beside if is_both else rates.cpu_alone)
        if link_bytes > 0:
            if link_wait > 0:
                link_wait -= step
            else:
                link_bytes -= step * (rates.link_beside if is_both else rates.link_alone)
        now += step
    return now


@pytest.mark.parametrize("found", [H200, SLOW_LINK, Rates(20 * GB, 50 * GB, 15 * GB, 40 * GB)])
@pytest.mark.parametrize("costs", [FREE, FixedCosts(5e-6, 2e-6)])
def test_no_other_number_ends_earlier(found: Rates, costs: FixedCosts) -> None:
    table = share_table(found, BLOB, 12, costs)
    for n in range(1, 13):
        ends = [end_by_steps(found, BLOB * (n - m), BLOB * m, costs) for m in range(n + 1)]
        assert ends[table[n]] <= min(ends) * 1.005 + 1e-6


def test_few_misses_go_to_the_faster_side() -> None:
    assert share_table(H200, BLOB, 1).tolist() == [0, 0]
    link_is_faster = Rates(20 * GB, 50 * GB, 15 * GB, 45 * GB)
    assert share_table(link_is_faster, BLOB, 1).tolist() == [0, 1]
    assert share_table(SLOW_LINK, BLOB, 5).tolist() == [0] * 6


@settings(deadline=None)
@given(rates())
def test_many_misses_are_split_as_the_rates_are_when_both_run(found: Rates) -> None:
    table = share_table(found, BLOB, 300, FREE)
    assert table[0] == 0
    assert np.all(np.diff(table) >= 0)
    together = found.cpu_beside + found.link_beside
    if together > 1.1 * max(found.cpu_alone, found.link_alone):  # both at once are worth it
        assert abs(table[300] - 300 * found.link_beside / together) <= 2
    elif together < 0.95 * found.cpu_alone and found.cpu_alone > found.link_alone:
        assert table[300] == 0


def test_of_equals_the_fewest_are_read_in_place() -> None:
    alike = Rates(50 * GB, 50 * GB, 25 * GB, 25 * GB)  # one memory that both share: nothing is gained by two
    assert share_table(alike, BLOB, 6, FREE).tolist() == [0] * 7


@pytest.mark.parametrize(("share", "of_ten"), [(0.0, 0), (0.3, 3), (0.35, 3), (0.7, 7), (1.0, 10)])
def test_a_fixed_share_is_rounded_down(share: float, of_ten: int) -> None:
    table = fixed_share_table(share, 20)
    assert table.dtype == np.int32
    assert table[10] == of_ten
    assert np.all(table <= np.arange(21))


def measured(rate: float, bytes_: int = 4 * LEAST_BYTES) -> Measured:
    return Measured(bytes_, round(bytes_ / rate * 1e9))


def test_refining_goes_part_of_the_way_and_ends_at_what_is_measured() -> None:
    once = refined(H200, measured(41 * GB), measured(45 * GB))
    assert once.cpu_beside == pytest.approx(82 * GB * 0.5 ** (1 - DAMPING))
    assert once.link_beside == pytest.approx(45 * GB)
    assert once.cpu_alone / once.cpu_beside == pytest.approx(H200.cpu_alone / H200.cpu_beside)
    found = H200
    for _ in range(30):
        found = refined(found, measured(41 * GB), measured(30 * GB))
    assert found.cpu_beside == pytest.approx(41 * GB, rel=1e-3)
    assert found.link_beside == pytest.approx(30 * GB, rel=1e-3)


def test_a_side_that_did_too_little_keeps_its_rate_and_says_so() -> None:
    found = refined(H200, measured(10 * GB, LEAST_BYTES - 1), Measured(0, 0))
    assert found == H200
    assert refinement_in_words(48, H200, found) == (
        "after 48 windows: too few experts were missing to judge the share: still CPU 106.0 GB/s, link 50.0, both at "
        "once 127.0 (82.0 + 45.0)"
    )


def test_a_pause_of_the_pc_does_not_end_the_use_of_a_side() -> None:
    found = refined(H200, measured(1000.0), measured(45 * GB))
    assert found.cpu_beside == pytest.approx(82 * GB / 2)
    assert "CPU 53.0 GB/s" in refinement_in_words(96, H200, found)


@pytest.mark.parametrize("wrong", [{"cpu_alone": 0.0}, {"link_alone": float("nan")}, {"cpu_beside": 200.0 * GB}])
def test_rates_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(EngineError, match=r"rate|faster beside"):
        replace(H200, **wrong)
