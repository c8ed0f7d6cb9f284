"""What has been done since the start, counted. Knows the border's statistics and nothing of how work is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass

from strata.engine.messages import SlotView, Statistics
from strata.engine.steps import SlotResult


@dataclass
class Counters:
    """Sums over all requests."""

    busy_seconds: float = 0.0
    prompt_tokens: int = 0  # read
    cached_tokens: int = 0
    reply_tokens: int = 0
    windows: int = 0
    drafted: int = 0
    accepted: int = 0
    runs: int = 0  # of prompts: read with no window in between
    give_ways: int = 0  # a prompt's read let another one pass

    def take(self, result: SlotResult) -> None:
        """Tokens came for one slot."""
        self.reply_tokens += len(result.draws)
        self.drafted += result.drafted
        self.accepted += result.accepted

    def statistics(
        self,
        *,
        seconds: float,
        waiting: int,
        slots: tuple[SlotView, ...],
        memory: Mapping[str, int],
        checkpoints: Mapping[str, int],
        pages: Mapping[str, int],
        experts: Mapping[str, int],
        experts_are_rows: bool,
        experts_read: Mapping[str, int],
        parked: Mapping[str, int],
    ) -> Statistics:
        """With the state of the moment."""
        return Statistics(
            seconds=seconds,
            busy_seconds=self.busy_seconds,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            reply_tokens=self.reply_tokens,
            windows=self.windows,
            drafted_tokens=self.drafted,
            accepted_drafts=self.accepted,
            read_runs=self.runs,
            give_ways=self.give_ways,
            waiting=waiting,
            slots=slots,
            memory=dict(memory),
            checkpoints=dict(checkpoints),
            pages=dict(pages),
            experts=dict(experts),
            experts_are_rows=experts_are_rows,
            experts_read=dict(experts_read),
            parked=dict(parked),
        )
