"""What is told of a scenario with joining prompts, in which order, and what is wanted of it beside the mode `whole`.

Pure: numbers of scenarios that have run. Wanted are ratios, so that they hold on any machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strata.bench.join_modes import JoinMode
from strata.bench.joining import FIRST_ROWS, Joined
from strata.scheduler.read_modes import ReadMode

LONGEST_PAUSE, SLOW_GAP = "longest pause of a stream", "p99 gap of a stream meanwhile"
SHORT_PAUSE, LONGEST_WANTED = 0.100, 0.150  # seconds
PIECE_PAUSES = {0.5: 0.40, 0.25: 0.25}  # by the piece's share of the first prompt: of the pause in `whole`
GAP_QUANTILE = 0.99


@dataclass(frozen=True)
class Target:
    """What a mode should reach beside `whole`."""

    limit: Callable[[float], float]  # of what `whole` had
    is_least: bool = False  # else it is the most

    def is_met(self, value: float, whole: float) -> bool:
        """Whether a mode reaches it."""
        limit = self.limit(whole)
        return value >= limit if self.is_least else value <= limit


@dataclass(frozen=True)
class Measure:
    """One row of the table."""

    scenario: str
    title: str
    of: Callable[[Joined], float]
    target: Target | None = None


def _at_most(ratio: float) -> Target:
    return Target(lambda whole: ratio * whole)


def _slow_gap(joined: Joined) -> float:
    gaps = joined.gaps_meanwhile
    return gaps[min(len(gaps) - 1, int(GAP_QUANTILE * len(gaps)))]


def _first_token(name: str) -> Callable[[Joined], float]:
    return lambda joined: joined.seen[name].first_token


PAUSE = Target(lambda whole: min(LONGEST_WANTED, max(0.02 * whole, SHORT_PAUSE)))
NO_PAUSE = Target(lambda whole: 0.0)
RATE = Target(lambda whole: 0.98 * whole, is_least=True)
GAP = Target(lambda whole: SHORT_PAUSE)  # with --max-gap-ms 100

MEASURES = (
    Measure("two_joiners", LONGEST_PAUSE, lambda joined: joined.longest_pause, PAUSE),
    Measure("two_joiners", "total paused (gaps over 0.5 s)", lambda joined: joined.total_paused, NO_PAUSE),
    Measure("two_joiners", "tokens the streams got meanwhile", lambda joined: joined.tokens_meanwhile),
    Measure("two_joiners", SLOW_GAP, _slow_gap, GAP),
    Measure("two_joiners", "first prompt to its first token", _first_token("first"), _at_most(1.15)),
    Measure("two_joiners", "second prompt to its first token", _first_token("second"), _at_most(1.15)),
    Measure("two_joiners", "token rate of the run", lambda joined: joined.token_rate, RATE),
    Measure("followup", "question to its first token", _first_token("question"), _at_most(0.2)),
    Measure("followup", "long prompt to its first token", _first_token("long"), _at_most(1.15)),
    Measure("read_alone", "the long prompt read alone", _first_token("long"), _at_most(1.03)),
)


def measured(runs: Mapping[str, Joined]) -> dict[str, float]:
    """The rows of the scenarios that have run, by title."""
    return {each.title: float(each.of(runs[each.scenario])) for each in MEASURES if each.scenario in runs}


def measures_of(scenarios: Sequence[str]) -> list[Measure]:
    """The rows of these scenarios."""
    return [each for each in MEASURES if each.scenario in scenarios]


def target_of(measure: Measure, mode: JoinMode, first_rows: int = FIRST_ROWS) -> Target | None:
    """What a mode should reach. first_rows: of the first joiner's prompt."""
    if mode.mode is ReadMode.LAYERS:
        return measure.target
    if mode.piece is None or measure.title != LONGEST_PAUSE:
        return None
    ratio = PIECE_PAUSES.get(mode.piece / first_rows)
    return None if ratio is None else _at_most(ratio)
