"""Where joining prompts come in on a machine whose speed nobody knows yet: offsets as parts of what `whole` takes.

Knows scenarios and what runs one; no model.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.bench.joining import (
    QUESTION_SENT,
    SECOND_SENT,
    Joined,
    Scenario,
    follow_up,
    read_alone,
    two_joiners,
)

CALIBRATION_TOKENS = 64  # of each stream's reply
LEAST_TOKENS, MOST_TOKENS = 32, 4_000
READ_WHOLE = Callable[[Scenario], Joined]  # runs a scenario in the mode `whole`


@dataclass(frozen=True)
class Sizes:
    """How large the scenarios are on this machine."""

    scale: float = 1.0  # of the prompts' rows
    stream_tokens: int | None = None  # of each stream's reply; None: as many as take the time of both reads


def scaled_scenarios(names: Sequence[str], sizes: Sizes, run: READ_WHOLE) -> tuple[Scenario, ...]:
    """Their second clients come when they came in what was published: so far into the first one's read.

    Streams decode for about as long as both prompts are read, as there, unless the sizes say how many tokens they get.
    """
    found = []
    for name in names:
        if name == "two_joiners":
            found.append(_two_joiners(sizes, run))
        elif name == "followup":
            scenario = follow_up().scaled(sizes.scale)
            seen = run(scenario.without_followers()).seen["long"]
            found.append(scenario.with_offset(QUESTION_SENT * seen.first_token))
        else:
            found.append(read_alone().scaled(sizes.scale))
    return tuple(found)


def _two_joiners(sizes: Sizes, run: READ_WHOLE) -> Scenario:
    tokens = CALIBRATION_TOKENS if sizes.stream_tokens is None else sizes.stream_tokens
    first = run(two_joiners(stream_tokens=tokens).scaled(sizes.scale).without_followers())
    read = first.seen["first"].first_token
    if sizes.stream_tokens is None:
        rows = [client.prompt_rows for client in two_joiners().joiners]
        tokens = round(read * sum(rows) / rows[0] * _stream_rate(first))
        tokens = min(max(tokens, LEAST_TOKENS), MOST_TOKENS)
    return two_joiners(SECOND_SENT * read, tokens).scaled(sizes.scale)


def _stream_rate(joined: Joined) -> float:
    """Tokens a second of a stream, by its usual gap."""
    gaps = [gap for stream in joined.streams.values() for gap in stream.gaps]
    counts = [count for stream in joined.streams.values() for count in stream.counts[1:]]
    return statistics.mean(counts) / statistics.median(gaps)
