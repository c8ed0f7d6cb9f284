"""Runs requests of token ids on one model: read the prompt, then window after window until there is a reason to end.

Knows when to stop and what to count; knows no text. Several runs may be under way at once: each has its own slot, and
the model is used by one at a time, from one model call to the next.
"""

import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch

from strata.engine.control import RunControl
from strata.engine.reader import read_prompt
from strata.engine.request import RunEnded, TokenRequest, TokensDrawn
from strata.engine.slot import Slot, open_slot
from strata.engine.window import WindowOutcome, close_reading, run_window
from strata.errors import EngineError, RequestError
from strata.models.base import LanguageModel
from strata.sampling.draw import Draw
from strata.sampling.sampler import Sampler
from strata.settings import EngineSettings
from strata.types import FinishReason, Usage


@dataclass
class _Counts:
    """What a run has done so far; times are of one steady clock."""

    prompt_tokens: int
    started: float
    read_done: float | None = None
    last_token: float | None = None
    completion_tokens: int = 0
    windows: int = 0
    drafted: int = 0
    accepted: int = 0

    def usage(self, now: float) -> Usage:
        """As a caller sees it."""
        read_done = now if self.read_done is None else self.read_done
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            windows=self.windows,
            drafted_tokens=self.drafted,
            accepted_drafts=self.accepted,
            read_seconds=read_done - self.started,
            decode_seconds=0.0 if self.last_token is None else self.last_token - read_done,
        )


class TokenEngine:
    """One loaded model and the settings it runs under."""

    def __init__(self, model: LanguageModel, settings: EngineSettings) -> None:
        self._model = model
        self._settings = settings
        self._turn = threading.Lock()  # the model is used by one run at a time
        self.context = min(settings.context or model.max_position, model.max_position)

    @property
    def model(self) -> LanguageModel:
        """The model itself, for those who measure it while nothing runs."""
        return self._model

    def check(self, request: TokenRequest) -> None:
        """Refuse what cannot be run, before anything runs. Raises RequestError."""
        tokens = len(request.prompt)
        if tokens == 0:
            raise RequestError("the prompt is empty: give at least one token")
        if tokens >= self.context:
            raise RequestError(
                f"the prompt has {tokens} tokens and the context holds {self.context}, "
                "which leaves no room for a reply: shorten the prompt"
            )
        request.options.check_vocabulary(self._model.vocabulary_size)
        last = self._model.vocabulary_size - 1
        for token in request.prompt:
            if not 0 <= token <= last:
                raise RequestError(f"token id {token} is not in the vocabulary (0 to {last})")

    def run(self, request: TokenRequest, control: RunControl) -> Generator[TokensDrawn | RunEnded, None, None]:
        """Run a checked request. The last event is always RunEnded; a failure of the engine is its reason."""
        counts = _Counts(len(request.prompt), time.monotonic())
        try:
            reason = yield from self._tokens(request, control, counts)
        except EngineError as failure:
            yield RunEnded(FinishReason.ERROR, counts.usage(time.monotonic()), str(failure))
        except (MemoryError, RuntimeError) as failure:
            if not is_out_of_memory(failure):
                raise
            yield RunEnded(FinishReason.ERROR, counts.usage(time.monotonic()), "out of memory while the engine ran")
        else:
            yield RunEnded(reason, counts.usage(time.monotonic()))

    def _tokens(
        self, request: TokenRequest, control: RunControl, counts: _Counts
    ) -> Generator[TokensDrawn, None, FinishReason]:
        depth = self._settings.drafts
        slot = open_slot(self._model, drafting=depth > 0)
        sampler = Sampler(request.options, self._model.vocabulary_size, request.prompt)
        outcome = self._read(request, control, counts, slot, sampler)
        room = self.context - len(request.prompt)
        budget = min(request.options.max_tokens or room, room)
        while outcome is not None:
            draws, reason = _until_end(outcome.draws, budget - counts.completion_tokens, request.stop_token_ids)
            counts.completion_tokens += len(draws)
            counts.last_token = time.monotonic()
            yield TokensDrawn(draws, counts.usage(counts.last_token))
            if reason is not None:
                return reason
            if control.is_cancelled:
                break
            drafts = outcome.next_drafts[: budget - counts.completion_tokens - 1]
            with self._turn:
                outcome = run_window(slot, draws[-1].token_id, drafts, sampler, depth)
            counts.windows += 1
            counts.drafted += len(drafts)
            counts.accepted += outcome.accepted_drafts
        return FinishReason.CANCELLED

    def _read(
        self, request: TokenRequest, control: RunControl, counts: _Counts, slot: Slot, sampler: Sampler
    ) -> WindowOutcome | None:
        """Read the prompt and draw the first token; None if the run is cancelled before."""
        prompt = torch.tensor(request.prompt)
        chunks = read_prompt(slot, prompt, self._settings.chunk_rows)
        while not control.is_cancelled:
            with self._turn:
                rows_read, chunk, output = next(chunks)
                if rows_read == len(prompt):
                    outcome = close_reading(slot, output, chunk, sampler, self._settings.drafts)
            control.report(rows_read, len(prompt))
            if rows_read == len(prompt):
                counts.read_done = time.monotonic()
                return outcome
        return None


def _until_end(
    draws: Sequence[Draw], budget: int, stop_token_ids: frozenset[int]
) -> tuple[tuple[Draw, ...], FinishReason | None]:
    """The draws that belong to the reply, and why it ends with them if it does."""
    for count, draw in enumerate(draws, start=1):
        if draw.token_id in stop_token_ids:
            return tuple(draws[:count]), FinishReason.STOP
        if count == budget:
            return tuple(draws[:count]), FinishReason.LENGTH
    return tuple(draws), None


def is_out_of_memory(failure: BaseException) -> bool:
    """Whether an exception of Python or torch says that memory ran out."""
    return isinstance(failure, MemoryError) or "DefaultCPUAllocator" in str(failure)
