"""A model without weights: each token has one successor, and the draft layer is sometimes wrong about it.

It holds the contract of `models.base` closely enough to count on: state moves only by `read` and `commit`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from strata.errors import EngineError
from strata.models.base import DraftRows, LogitRows, Output, Reading, Segment, WindowResult
from strata.models.reading import OutputSteps, Steps
from strata.types import ReadAhead

VOCABULARY = 32


def successor(token: int) -> int:
    """The token that the model gives after this one; a cycle through all of them."""
    return (token * 5 + 3) % VOCABULARY


def continuation(token: int, count: int) -> list[int]:
    """The next `count` tokens of a greedy reply."""
    tokens = []
    for _ in range(count):
        token = successor(token)
        tokens.append(token)
    return tokens


@dataclass
class FakeState:
    """The tokens that are part of the state."""

    tokens: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        return len(self.tokens)

    def bytes_used(self) -> int:
        return 8 * len(self.tokens)

    def clone(self) -> "FakeState":
        return FakeState(list(self.tokens))


def rows_of(token_ids: torch.Tensor, guess: Any = successor) -> torch.Tensor:
    """Logits that are largest at each token's successor."""
    logits = torch.zeros(len(token_ids), VOCABULARY)
    for row, token in enumerate(token_ids.tolist()):
        logits[row, guess(token)] = 4.0
    return logits


class FakeModel:
    """See `LanguageModel`. `fails_at` is a position at which the model's numbers stop being finite."""

    experts_per_row = 3
    reads_as_windows = False
    keeps_marks = False
    reads_runs = False
    chunk_rows = None
    most_window_rows = None
    pages_counted: ClassVar[dict[str, int]] = {}
    experts_place = "cpu"
    experts_counted = None
    experts_read: ClassVar[dict[str, int]] = {}
    waiting_for = None
    read_ahead = ReadAhead()
    arrivals = 0

    def __init__(self, max_position: int = 256, draft_head: "FakeHead | None" = None, fails_at: int = -1) -> None:
        self.config = None
        self.vocabulary_size = VOCABULARY
        self.max_position = max_position
        self.draft_head = draft_head
        self.fails_at = fails_at
        self.read_rows: list[int] = []
        self.window_rows: list[int] = []
        self.states: list[FakeState] = []
        self.released: list[FakeState] = []

    def new_state(self) -> FakeState:
        self.states.append(FakeState())
        return self.states[-1]

    def release(self, state: FakeState) -> None:
        self.released.append(state)

    def read(self, segments: Sequence[Segment], logit_rows: LogitRows = LogitRows.LAST) -> Output:
        (segment,) = segments
        self.read_rows.append(len(segment.token_ids))
        segment.state.tokens += segment.token_ids.tolist()
        assert segment.state.position <= self.max_position
        logits = rows_of(segment.token_ids)
        first = {LogitRows.ALL: 0, LogitRows.LAST: len(logits) - 1, LogitRows.NONE: len(logits)}[logit_rows]
        return Output(logits[first:], segment.token_ids[:, None].float())

    def begin_read(
        self, segment: Segment, logit_rows: LogitRows = LogitRows.LAST, marks: Sequence[int] = ()
    ) -> Reading:
        return Steps(self._read_steps(segment, logit_rows))

    def _read_steps(self, segment: Segment, logit_rows: LogitRows) -> OutputSteps:
        yield  # between its two layers
        return self.read([segment], logit_rows)

    def window(self, segments: Sequence[Segment]) -> WindowResult:
        self.window_rows.append(sum(len(segment.token_ids) for segment in segments))
        for segment in segments:
            last = segment.state.position + len(segment.token_ids)
            assert last <= self.max_position
            if segment.state.position <= self.fails_at < last:
                raise EngineError("the logits of the window are not finite")
        token_ids = torch.cat([segment.token_ids for segment in segments])
        return WindowResult(segments, Output(rows_of(token_ids), token_ids[:, None].float()), None)

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        for segment, accepted in zip(window.segments, accepted_rows, strict=True):
            segment.state.tokens += segment.token_ids[:accepted].tolist()


class FakeHead:
    """See `DraftHead`. Wrong after every token that `is_wrong` names."""

    def __init__(self, is_wrong: Any = lambda token: token % 3 == 0) -> None:
        self._is_wrong = is_wrong
        self.states: list[FakeState] = []

    def new_state(self) -> FakeState:
        self.states.append(FakeState())
        return self.states[-1]

    def read(self, rows: DraftRows, logit_rows: LogitRows = LogitRows.LAST) -> Output:
        tokens = rows.next_token_ids
        assert len(rows.hidden) == len(tokens)
        rows.state.tokens += tokens.tolist()
        logits = rows_of(tokens[-1:], self._guess)
        return Output(logits if logit_rows is LogitRows.LAST else logits[:0], tokens[:, None].float())

    def truncate(self, state: FakeState, position: int) -> None:
        del state.tokens[position:]

    def _guess(self, token: int) -> int:
        return (successor(token) + 1) % VOCABULARY if self._is_wrong(token) else successor(token)
