"""Each token is told once, in order, as soon as all of its characters are settled."""

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.sampling.draw import Draw
from strata.text.token_ledger import TokenLedger
from tests.text.reply_tools import MARKED


def ledger(lengths: list[int], shows: bool = True) -> TokenLedger:
    """Tokens 0, 1, .. that write so many characters each."""
    made, end = TokenLedger(MARKED, shows), 0
    for token_id, length in enumerate(lengths):
        end += length
        made.add(Draw(token_id), end)
    return made


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12))
def test_tokens_are_told_as_their_characters_are(lengths: list[int], settled: list[tuple[int, bool]]) -> None:
    made = ledger(lengths)
    kinds: list[bool] = []
    told: list[tuple[int, bool]] = []
    for count, is_content in settled:
        count = min(count, sum(lengths) - len(kinds))
        kinds += [is_content] * count
        told += [(shown.draw.token_id, shown.is_content) for shown in made.settle(count, is_content)]
        # A token of no character goes with the one it begins: it waits until that one is known.
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        known = [i for i, end in enumerate(ends) if max(end, end - lengths[i] + 1) <= len(kinds)]
        assert [token_id for token_id, _ in told] == known
    for token_id, is_content in told:
        start = sum(lengths[:token_id])
        assert is_content == any(kinds[start : max(start + 1, start + lengths[token_id])])
    rest = [shown.draw.token_id for shown in made.finish()]
    assert [token_id for token_id, _ in told] + rest == list(range(len(lengths)))


def test_an_end_of_text_is_never_content() -> None:
    made = ledger([1])
    made.add(Draw(1), 1, ends_reply=True)
    assert [(s.draw.token_id, s.is_content) for s in made.settle(1, True)] == [(0, True), (1, False)]


def test_nothing_is_told_unless_it_is_asked_for() -> None:
    made = ledger([1, 2], shows=False)
    assert made.settle(3, True) == made.finish() == []
    assert made.settled == 3


def test_tokens_are_counted_up_to_a_position() -> None:
    made = ledger([2, 0, 3])
    assert [made.tokens_until(position) for position in (1, 2, 3, 5, 9)] == [1, 1, 3, 3, 3]
