"""Kept conversations are found again in the prompts that go on from them."""

from strata.scheduler.turns import KeptTurns


def test_longest_kept_conversation_in_a_prompt() -> None:
    turns = KeptTurns()
    for kept in ((1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 9), (7,)):
        turns.remember(kept)
    assert turns.longest_in((1, 2, 3, 4, 5, 6)) == 5
    assert turns.longest_in((1, 2, 3, 4, 5)) == 3  # a prompt as long as it goes on from none of it
    assert turns.longest_in((1, 2, 3, 9)) == 3
    assert turns.longest_in((1, 2, 8)) == 0
    assert turns.longest_in((7, 2**40)) == 1


def test_the_oldest_are_forgotten() -> None:
    turns = KeptTurns(most=2)
    for kept in ((1,), (2,), (1,), (3,)):
        turns.remember(kept)
    assert [turns.longest_in((first, 0)) for first in (1, 2, 3)] == [1, 0, 1]
