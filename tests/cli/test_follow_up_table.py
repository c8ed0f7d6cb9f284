"""What is printed of follow-ups: what was wanted of each, and how much of it was taken."""

import io

import pytest
from rich.console import Console

from strata.bench.follow_up import FollowUp
from strata.bench.spread import Spread
from strata.cli.follow_up_table import check_follow_ups, show_follow_ups
from strata.errors import SettingsError

FACTS = {
    "card": "a card", "copy_gb_per_s": 4000.0, "layers": 12, "tiny": False, "experts_bits": 4.5, "dense_bits": 8.5,
    "kv_kind": "bf16", "plan": {"rounds": 3},
}  # fmt: skip


def test_a_turn_is_held_against_what_sending_takes_or_against_a_fifth_of_a_second() -> None:
    spread = Spread.of([0.1, 0.15, 0.2])
    turns = [FollowUp(0, 64, 30_720, spread, 1 << 30, 0.1), FollowUp(100, 64, 30_720, spread, 0, 0.0)]
    file = io.StringIO()
    show_follow_ups(FACTS, turns, Console(file=file, width=120))
    _, _, _, sent, resident, *_ = file.getvalue().splitlines()
    assert sent.split() == ["0", "%", "64", "150.0", "(100.0-200.0)", "1.00", "100.0", "190.0", "0.79"]
    assert resident.split() == ["100", "%", "64", "150.0", "(100.0-200.0)", "0.00", "0.0", "200.0", "0.75"]


def test_a_turn_that_no_slot_holds_is_refused() -> None:
    check_follow_ups((64,), 30_720)
    with pytest.raises(SettingsError, match="behind 262,000 tokens a whole number from 1 to 144 does"):
        check_follow_ups((145,), 262_000)
