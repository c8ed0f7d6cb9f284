"""Which drafts of a window stand: pure functions over token ids. Knows no model and no tensor."""

from collections.abc import Sequence


def accept_greedy(drafts: Sequence[int], verified: Sequence[int]) -> int:
    """How many drafts stand.

    A window reads the slot's last token and then its drafts; `verified[j]` is the token that the model itself gives
    after the window's row j, so it has one more entry than `drafts`. Draft j stands if it and all before it are what
    the model gives. With `accepted` returned: `accepted + 1` rows are committed and
    `verified[accepted]` is the next token.
    """
    if len(verified) != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} verified tokens, not {len(verified)}")
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == verified[accepted]:
        accepted += 1
    return accepted
