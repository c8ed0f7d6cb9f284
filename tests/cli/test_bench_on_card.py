"""Flags of made-up models and turns: what cannot be made is refused before anything is."""

import pytest

from strata.cli.bench_on_card import MadeModel, Turns, check_ranges, made_lines
from strata.errors import SettingsError


@pytest.mark.parametrize(
    ("layers", "contexts", "slots", "counts", "words"),
    [
        (0, (), (), {}, "--layers 0 does not work"),
        (1, (1024, 262_145), (), {}, "--context 262145 does not work; a whole number from 1 to 262,144 does"),
        (1, (), (1, 33), {}, "--slots 33 does not work"),
        (1, (), (), {"windows": 0}, "--windows 0 does not work"),
    ],
)
def test_the_first_number_that_does_not_work_is_named(
    layers: int, contexts: tuple[int, ...], slots: tuple[int, ...], counts: dict[str, int], words: str
) -> None:
    check_ranges(1, (262_144,), (32,), {"rounds": 1})
    with pytest.raises(SettingsError, match=words):
        check_ranges(layers, contexts, slots, counts)


def test_only_a_tiny_model_is_made_without_a_card() -> None:
    MadeModel(tiny=True).require_card(has_card=False)
    MadeModel().require_card(has_card=True)
    with pytest.raises(SettingsError, match="--tiny tries it without"):
        MadeModel().require_card(has_card=False)
    with pytest.raises(SettingsError, match="--experts-bits 5 does not work"):
        MadeModel(experts_bits=5).check()


def test_turns_that_were_not_given_are_chosen_by_whoever_runs_them() -> None:
    assert (Turns().context, Turns().slots) == (None, None)
    Turns().check()
    with pytest.raises(SettingsError, match="--rounds 0 does not work"):
        Turns(rounds=0).check()


def test_a_report_says_what_was_made_and_where() -> None:
    facts = MadeModel(layers=4, routing="popular", tiny=True).facts(has_card=False)
    first, warning = made_lines({**facts, "copy_gb_per_s": None}, "5 rounds")
    assert str(first) == (
        "no card; 4 layers of the tiny shape, random weights, experts 4.5 bits, others 8.5, keys and values bf16; "
        "median (lowest to highest) of 5 rounds"
    )
    assert "measure nothing real" in str(warning)
    assert facts["routing"] == "popular"
