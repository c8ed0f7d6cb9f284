"""Rates follow what windows show, each side by its own time, and no further than what was ever seen."""

from dataclasses import astuple

import numpy as np
import pytest

from strata.experts.share import FixedCosts, Rates, side_ends
from strata.experts.share_refining import (
    DAMPING,
    HEADROOM,
    LEAST_BYTES,
    Seen,
    refined,
    refinement_in_words,
    tried_table,
)
from tests.experts.missing_machine import BLOB

GB = 10**9
H200 = Rates(133.0 * GB, 46.0 * GB, 110.0 * GB, 41.0 * GB)
COSTS = FixedCosts(12e-6, 2e-6)
REQUESTS = 200


def seen_of(true: Rates, on_cpu: int = 4, in_place: int = 2, *, is_told: bool = True) -> Seen:
    """What requests of so many experts show where the rates are these."""
    sizes = on_cpu * BLOB, in_place * BLOB
    cpu_s, link_s = side_ends(true, np.array(sizes[0]), np.array(sizes[1]), COSTS)
    cpu_ns = round((float(cpu_s) - COSTS.cpu + COSTS.cpu_busy) * REQUESTS * 1e9)
    link_ns = round(float(link_s) * REQUESTS * 1e9) if is_told else 0
    return Seen(REQUESTS, REQUESTS * sizes[0], cpu_ns, REQUESTS * sizes[1], link_ns)


@pytest.mark.parametrize(("on_cpu", "in_place"), [(4, 2), (1, 1), (8, 2), (1, 3), (5, 0)])
def test_rates_that_are_right_stay(on_cpu: int, in_place: int) -> None:
    found = refined(H200, H200, COSTS, seen_of(H200, on_cpu, in_place, is_told=in_place > 0))
    assert astuple(found) == pytest.approx(astuple(H200), rel=0.02)


def test_refining_goes_most_of_the_way_and_ends_at_what_windows_show() -> None:
    true = Rates(66.5 * GB, 34.5 * GB, 55.0 * GB, 30.75 * GB)  # a PC that is otherwise busy
    once = refined(H200, H200, COSTS, seen_of(true, 6, 3))
    assert once.link_alone == pytest.approx(46 * GB * 0.75 ** (1 - DAMPING), rel=0.03)
    found = H200
    for _ in range(30):
        found = refined(found, H200, COSTS, seen_of(true, 6, 3))
    assert astuple(found) == pytest.approx(astuple(true), rel=0.02)


def test_a_cpu_beside_the_link_that_was_taken_for_slow_is_found_out() -> None:
    believed = Rates(122.0 * GB, 46.0 * GB, 76.0 * GB, 41.0 * GB)
    found = believed
    for _ in range(3):
        found = refined(found, believed, COSTS, seen_of(H200))
    assert found.cpu_beside == pytest.approx(H200.cpu_beside, rel=0.03)


def test_alone_a_side_grows_no_further_than_it_was_ever_seen() -> None:
    faster = Rates(160.0 * GB, 60.0 * GB, 150.0 * GB, 55.0 * GB)
    found = H200
    for _ in range(20):
        found = refined(found, H200, COSTS, seen_of(faster, 4, 2))
    assert found.cpu_alone == pytest.approx(HEADROOM * H200.cpu_alone)
    assert HEADROOM * H200.link_alone <= found.link_alone < 60 * GB
    assert found.cpu_beside <= found.cpu_alone
    assert found.link_beside <= found.link_alone


def test_where_nothing_was_in_place_the_cpu_is_held_against_its_rate_alone() -> None:
    """Held against that beside the link, a right rate would climb at each look."""
    believed = Rates(133.0 * GB, 46.0 * GB, 74.0 * GB, 41.0 * GB)
    found = refined(believed, believed, COSTS, seen_of(H200, 5, 0, is_told=False))
    assert astuple(found) == pytest.approx(astuple(believed), rel=1e-5)


def test_a_side_that_did_too_little_keeps_its_rate_and_says_so() -> None:
    little = Seen(REQUESTS, LEAST_BYTES - 1, 10**9, LEAST_BYTES - 1, 10**9)
    assert refined(H200, H200, COSTS, little) == H200
    assert refined(H200, H200, COSTS, Seen(0, 0, 0, 0, 0)) == H200
    untold = refined(H200, H200, COSTS, seen_of(Rates(70.0 * GB, 20.0 * GB, 60.0 * GB, 15.0 * GB), is_told=False))
    assert (untold.link_alone, untold.link_beside) == (H200.link_alone, H200.link_beside)
    assert untold.cpu_beside < 80 * GB
    assert refinement_in_words(48, H200, H200) == (
        "after 48 windows: too few experts were missing to judge the share: still CPU 133.0 GB/s, link 46.0, both at "
        "once 151.0 (110.0 + 41.0)"
    )


def test_a_pause_of_the_pc_does_not_end_the_use_of_a_side() -> None:
    seen = seen_of(H200)
    paused = Seen(seen.requests, seen.cpu_bytes, seen.cpu_ns + 10**12, seen.link_bytes, seen.link_ns)
    found = refined(H200, H200, COSTS, paused)
    assert found.cpu_beside == pytest.approx(H200.cpu_beside * 0.25 ** (1 - DAMPING))
    assert "after 96 windows: CPU 47.0 GB/s" in refinement_in_words(96, H200, found)


def test_trying_gives_both_sides_a_part_of_what_can_be_divided() -> None:
    nothing, everything = np.zeros(13, np.int32), np.arange(13, dtype=np.int32)
    assert tried_table(nothing).tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert tried_table(everything).tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 9]
    divided = np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4], np.int32)
    assert tried_table(divided).tolist() == divided.tolist()
    assert tried_table(nothing).dtype == np.int32
