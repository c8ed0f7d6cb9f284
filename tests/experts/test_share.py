"""The share: whole experts so that both sides end early, few to the faster side, and what a request costs anyway."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import EngineError
from strata.experts.share import (
    DOORBELL_SECONDS,
    FixedCosts,
    Rates,
    fixed_share_table,
    rate_beside,
    share_table,
    without_fixed_cost,
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


@pytest.mark.parametrize("fixed", [5e-6, 12e-6])
def test_the_fixed_cost_of_a_request_is_found_from_one_expert_and_from_many(fixed: float) -> None:
    def asked(rate: float, experts: int) -> float:
        return experts * BLOB / (fixed + experts * BLOB / rate)

    beside = asked(H200.cpu_beside, 10)
    listed = Rates(asked(H200.cpu_alone, 10), H200.link_alone, beside, H200.link_beside)
    found, costs = without_fixed_cost(listed, asked(H200.cpu_alone, 1), BLOB, 10)
    assert costs.cpu == pytest.approx(fixed)
    assert costs.link == FixedCosts().link
    assert astuple(found) == pytest.approx(astuple(H200))


def test_a_request_never_costs_less_than_ringing_nor_more_than_half_of_one_expert() -> None:
    found, costs = without_fixed_cost(H200, H200.cpu_alone * 1.2, BLOB, 10)  # a noisy clock: one alone is faster
    assert costs.cpu == DOORBELL_SECONDS
    assert costs.cpu_busy == 0
    assert H200.cpu_alone < found.cpu_alone < 1.02 * H200.cpu_alone
    assert without_fixed_cost(H200, H200.cpu_alone, BLOB, 1)[1].cpu == DOORBELL_SECONDS  # lists of one tell nothing
    found, costs = without_fixed_cost(H200, H200.cpu_alone / 10, BLOB, 10)
    assert costs.cpu == pytest.approx(5 * BLOB / H200.cpu_alone)
    assert found.cpu_alone == pytest.approx(2 * H200.cpu_alone)
    tiny = 4096
    found, costs = without_fixed_cost(H200, H200.cpu_alone, tiny, 1)
    assert costs.cpu == DOORBELL_SECONDS
    assert found.cpu_alone == pytest.approx(2 * H200.cpu_alone)


def test_a_dear_request_leaves_few_misses_to_the_card() -> None:
    assert share_table(H200, BLOB, 1, FixedCosts(12e-6)).tolist() == [0, 0]
    assert share_table(H200, BLOB, 1, FixedCosts(40e-6)).tolist() == [0, 1]


def test_the_rate_beside_the_other_is_what_the_rest_of_the_time_leaves() -> None:
    assert rate_beside(100.0, 1000.0, 12.0, 10.0) == 80  # 2 s alone
    assert rate_beside(100.0, 1000.0, 10.0, 12.0) == 100
    assert rate_beside(100.0, 100.0, 12.0, 10.0) == -10  # it cannot have been so fast alone


@pytest.mark.parametrize("wrong", [{"cpu_alone": 0.0}, {"link_alone": float("nan")}, {"cpu_beside": 200.0 * GB}])
def test_rates_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(EngineError, match=r"rate|faster beside"):
        replace(H200, **wrong)


def test_a_card_that_computes_for_another_group_reads_less() -> None:
    """A read in place holds that group up: it pays only where the CPU takes longer than the card and the link."""
    alone = share_table(H200, BLOB, 40)
    beside = share_table(H200, BLOB, 40, card_s=90e-6)
    assert (beside <= alone).all()
    assert alone[5] > 0 and beside[5] == 0
    assert beside[40] > 0
    assert share_table(H200, BLOB, 40, card_s=1.0).tolist() == [0] * 41
