"""The formula of a window in tiers: bytes over rates, and what layers that ask the CPU add."""

import pytest

from strata.bench.tier_formula import SYNC_US, TierBytes, TierRates, limit_ms

RATES = TierRates(vram=4000, in_place=50, in_place_read=51, cpu=100, cpu_read=102, both=125, both_in_place=40)


def test_misses_go_as_fast_as_both_sides_together_but_never_faster_than_alone() -> None:
    assert RATES.misses == 125
    assert TierRates(4000, 20, 20, 30, 30, both=60, both_in_place=20).misses == 50


def test_a_window_is_what_the_card_reads_then_what_is_missing_then_its_waits() -> None:
    size = TierBytes(dense=4_000_000_000, hits=400_000_000, misses=1_250_000_000)
    assert limit_ms(size, RATES, 0) == pytest.approx(1.1 + 10)
    assert limit_ms(size, RATES, 48) - limit_ms(size, RATES, 0) == pytest.approx(48 * SYNC_US / 1e3)


def test_the_published_shape_misses_13_mb_for_one_point_of_hit_rate() -> None:
    size = TierBytes(dense=0, hits=0, misses=480 * 2.76e6)
    assert size.at(0.01).hits == pytest.approx(13.2e6, rel=0.01)
    assert size.at(0.25).misses == pytest.approx(0.75 * size.misses)
