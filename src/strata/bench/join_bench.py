"""Scenarios with joining prompts on a real engine: read modes in turns over one loaded model, on its own clock.

Knows an engine of token ids and a scheduler; knows no model. Between two runs every slot is emptied.
"""

import gc
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.bench.interleave import Clients, made_up_tokens
from strata.bench.join_measures import measured
from strata.bench.join_modes import JoinMode, Served
from strata.bench.join_plan import Sizes, scaled_scenarios
from strata.bench.joining import Joined, Scenario, run_scenario
from strata.bench.spread import Spread
from strata.engine.engine import TokenEngine
from strata.errors import EngineError, SettingsError
from strata.scheduler.read_modes import ReadMode
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings
from strata.types import ProgressCallback

WHOLE = JoinMode(ReadMode.WHOLE)
ANSWER_TOKENS = 24
ANSWER_ROWS = (40, 700, 5, 1500, 130, 64)  # of their prompts


@dataclass(frozen=True)
class JoinRuns:
    """One mode: its runs by scenario, in the order of the rounds."""

    mode: JoinMode
    runs: dict[str, list[Joined]]

    @property
    def spreads(self) -> dict[str, Spread]:
        """Over the rounds, by a measure's title."""
        rounds = [dict(zip(self.runs, each, strict=True)) for each in zip(*self.runs.values(), strict=True)]
        rows = [measured(each) for each in rounds]
        return {title: Spread.of([row[title] for row in rows]) for title in rows[0]}


@dataclass
class JoinBench:
    """An engine that nobody else uses."""

    engine: TokenEngine
    served: Served
    settings: EngineSettings
    sizes: Sizes
    seed: int = 0
    answer_rows: Sequence[int] = ANSWER_ROWS  # of the prompts of `answers`
    scenarios: tuple[Scenario, ...] = field(default=(), init=False)  # as they ran

    def measure(
        self, names: Sequence[str], modes: Sequence[JoinMode], rounds: int, on_progress: ProgressCallback | None = None
    ) -> list[JoinRuns]:
        """The scenarios in every mode, modes in turns: A B C A B C. Raises EngineError if a request fails."""
        gc.collect()
        gc.freeze()  # as in the engine's process: looking through all of torch for garbage takes 70 ms
        if on_progress is not None:
            on_progress("running once to set the offsets", 0, 1)
        self.scenarios = scaled_scenarios(names, self.sizes, lambda scenario: self.run(scenario, WHOLE))
        self._check_fitting(self.scenarios)
        found = [JoinRuns(mode, {scenario.name: [] for scenario in self.scenarios}) for mode in modes]
        turns = [(scenario, each) for _ in range(rounds) for scenario in self.scenarios for each in found]
        for done, (scenario, each) in enumerate(turns):
            if on_progress is not None:
                on_progress(f"running {scenario.name} in {each.mode.name}", done, len(turns))
            each.runs[scenario.name].append(self.run(scenario, each.mode))
        if on_progress is not None:
            on_progress("running", len(turns), len(turns))
        return found

    def run(self, scenario: Scenario, mode: JoinMode) -> Joined:
        """On an emptied engine."""
        self.engine.forget_all()
        scheduler = Scheduler(self.engine, mode.limits(self.settings, self.served))
        return run_scenario(scenario, scheduler, self._prompt, time.monotonic, time.sleep)

    def answers(self, mode: JoinMode) -> list[str]:
        """SHA-256 of six greedy answers that run side by side, twice. Raises EngineError if the second ones differ."""
        first, second = (self._hashes(mode) for _ in range(2))
        if first != second:
            parts = [str(place + 1) for place, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]
            raise EngineError(f"{mode.name}: answers {', '.join(parts)} of {len(first)} are others the second time")
        return first

    def _hashes(self, mode: JoinMode) -> list[str]:
        clients = Clients(self.engine, self.served, self.settings, mode)
        most = self.engine.context - ANSWER_TOKENS - 1
        found = [
            clients.send(f"answer {number}", self._prompt(f"answer {number}", min(rows, most)), ANSWER_TOKENS)
            for number, rows in enumerate(self.answer_rows)
        ]
        clients.finish()
        return [hashlib.sha256(",".join(map(str, each.tokens)).encode()).hexdigest() for each in found]

    def _prompt(self, name: str, rows: int) -> tuple[int, ...]:
        return made_up_tokens(name, rows, self.engine.model.vocabulary_size, self.seed)

    def _check_fitting(self, scenarios: Sequence[Scenario]) -> None:
        """Raises SettingsError if a reply would end at the context's end."""
        for scenario in scenarios:
            if scenario.context >= self.engine.context:
                raise SettingsError(
                    f"{scenario.name} needs a context of {scenario.context + 1:,} tokens, and there are "
                    f"{self.engine.context:,}: give a smaller --scale, or fewer --stream-tokens"
                )
