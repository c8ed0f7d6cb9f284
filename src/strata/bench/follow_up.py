"""The next turn of a long conversation: how long its few fresh tokens take to the reply's first one.

Knows turns and what is wanted of them; the model, its experts and caches are `bench.read`'s. A speed is shown only if
every cache size and every turn gives the same logits, bit for bit.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from strata.bench.read import ReadBench
from strata.bench.spread import Spread
from strata.engine.stage_model import StageModel
from strata.engine.stage_slots import StageSlot
from strata.errors import EngineError
from strata.models.base import Segment
from strata.sampling.options import SamplingOptions
from strata.sampling.sampler import Sampler
from strata.types import ProgressCallback

HELD_TOKENS = 30_720  # of the turn before
FRESH_TOKENS = (64, 256, 1024)
SENDING_PART = 1.3  # wanted: at most so many times what sending the experts that are missing takes alone,
READING_SECONDS = 0.060  # and so much for everything else
RESIDENT_SECONDS = 0.2  # wanted where nothing is missing


@dataclass(frozen=True)
class FollowUp:
    """Turns of so many fresh tokens with one cache. `link_seconds` is None where there is no card."""

    cache: int
    fresh: int
    held: int
    seconds: Spread  # from the turn's start to its first token: read, logits of the last row, drawn
    sent_bytes: int  # of experts, in one turn
    link_seconds: float | None  # for these alone

    @property
    def wanted_seconds(self) -> float | None:
        """The most that a turn should take."""
        if not self.sent_bytes:
            return RESIDENT_SECONDS
        return None if self.link_seconds is None else SENDING_PART * self.link_seconds + READING_SECONDS

    @property
    def share(self) -> float | None:
        """Of what is wanted: up to 1 is quick enough."""
        return None if self.wanted_seconds is None else self.seconds.median / self.wanted_seconds


@dataclass
class FollowUpBench:
    """Follow-ups over the caches of a bench whose slots have room for them."""

    bench: ReadBench
    fresh: Sequence[int] = FRESH_TOKENS
    held: int = HELD_TOKENS
    _logits: dict[int, torch.Tensor] = field(default_factory=dict)  # by fresh tokens

    def measure(self, on_progress: ProgressCallback | None = None) -> list[FollowUp]:
        """All caches in order, with chunks of the plan's first size. Raises EngineError if logits differ."""
        rate, caches = self.bench.copy_bytes_per_second(), self.bench.plan.caches
        found = []
        for done, cache in enumerate(caches):
            if on_progress is not None:
                on_progress(f"following up with a cache of {cache} %", done, len(caches))
            found += self._follow_ups(cache, rate)
        if on_progress is not None:
            on_progress("following up", len(caches), len(caches))
        return found

    def _follow_ups(self, cache: int, rate: float | None) -> list[FollowUp]:
        """With one cache, whose model nobody holds any more when this returns."""
        found = []
        with self.bench.reader(cache, self.bench.plan.chunks[0]) as (model, feed):
            text = self._text(model)
            state = model.new_state()
            model.read([Segment(state, text[: self.held])])
            for fresh in self.fresh:
                before, taken = feed.sent_bytes, self._turns(model, state, text[self.held :][:fresh])
                sent = (feed.sent_bytes - before) // (self.bench.plan.rounds + 1)
                link = None if rate is None else sent / rate
                found.append(FollowUp(cache, fresh, self.held, Spread.of(taken), sent, link))
        return found

    def _text(self, model: StageModel) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.bench.plan.seed)
        return torch.randint(model.vocabulary_size, (self.held + max(self.fresh),), generator=generator)

    def _turns(self, model: StageModel, state: StageSlot, token_ids: torch.Tensor) -> list[float]:
        """Seconds of each turn but the first, which warms up; the slot is behind the held tokens again."""
        point, sampler = state.take_checkpoint(is_mark=False), Sampler(SamplingOptions(), model.vocabulary_size)
        taken = []
        for _ in range(self.bench.plan.rounds + 1):
            model.stage.wait()
            begin = time.perf_counter()
            logits = model.read([Segment(state, token_ids)]).logits
            sampler.sample(logits[-1], state.position)
            taken.append(time.perf_counter() - begin)
            state.go_back(point)
            known = self._logits.setdefault(len(token_ids), logits)
            if not torch.equal(known, logits):
                raise EngineError(
                    f"the logits of {len(token_ids):,} fresh tokens differ from those of another cache or turn by up "
                    f"to {float((known - logits).abs().max()):.2e}: no speed is shown for wrong results"
                )
        return taken[1:]
