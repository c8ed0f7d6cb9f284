"""Runs steps on one model: opens slots, reads pieces of prompts, runs windows over several replies.

Knows slots by number and requests of token ids; knows no text, no clock and no queue: what is to be done, and when, is
decided by the scheduler. One step at a time.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from strata.engine.failures import is_requests_failure, naming_lost_device, request_error
from strata.engine.parking import LOST, Parking
from strata.engine.point_keeper import PointKeeper
from strata.engine.points import PointBudget
from strata.engine.reader import Piece, PromptLogprobs
from strata.engine.reply import Reply
from strata.engine.request import TokenRequest
from strata.engine.slot import Slot, open_slot
from strata.engine.steps import Abandon, Open, ParkingSpace, Preparation, Read, SlotResult, Step, Window
from strata.engine.window_steps import Given, WindowSteps
from strata.engine.windows_ahead import WindowsAhead
from strata.errors import EngineError, RequestError
from strata.models.base import LanguageModel
from strata.sampling.grammar import Grammar
from strata.sampling.grammar_compile import GrammarFactory
from strata.sampling.sampler import Sampler
from strata.settings import EngineSettings
from strata.types import ReadAhead


class TokenEngine:
    """One loaded model, the settings it runs under, and its slots."""

    def __init__(
        self,
        model: LanguageModel,
        settings: EngineSettings,
        grammars: GrammarFactory | None = None,
        ahead: Sequence[WindowsAhead] = (),
        points: PointBudget | None = None,
        parking: ParkingSpace | None = None,
    ) -> None:
        """ahead: of each group of slots; the model's device chooses tokens, as far as it can. Empty: this side does.

        points: what all slots may keep of them, see `PointKeeper`. parking: for conversations whose slots are wanted,
        None: they are lost.
        """
        self._model = model
        self._keeper = PointKeeper(points)
        self._opened = 0  # requests so far
        self._depth = settings.drafts if model.draft_head is not None else 0
        self._grammars = grammars
        self._slots: dict[int, Slot] = {}  # by number: slots, and behind them places with parked conversations
        self._parking = Parking(self._slots, self._keeper)
        self.parking = parking or ParkingSpace()
        self._replies: dict[int, Reply] = {}
        self._windows = WindowSteps(model, self._slots, self._replies, self._depth, ahead)
        self._logprobs: dict[int, PromptLogprobs] = {}
        self._pieces: dict[int, Piece] = {}  # of prompts that are being read
        self._rows = 0  # of prompts, computed so far
        self.experts_are_rows = model.experts_counted is None  # what `experts` counts: see `Statistics`
        self.context = min(settings.context or model.max_position, model.max_position)
        self.chunk_rows = model.chunk_rows or settings.cpu_chunk_rows  # the most rows of one read

    @property
    def model(self) -> LanguageModel:
        """The model itself, for those who measure it while nothing runs."""
        return self._model

    @property
    def is_drafting(self) -> bool:
        """Whether the model's own draft layer is used."""
        return self._depth > 0

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
        if min(request.prompt) < 0 or max(request.prompt) > last:
            token = next(token for token in request.prompt if not 0 <= token <= last)
            raise RequestError(f"token id {token} is not in the vocabulary (0 to {last})")
        if request.options.seed is None and not request.options.greedy:
            raise RequestError("options that draw need a seed, and this request has none")
        if request.grammar is not None and request.options.min_tokens:
            raise RequestError(
                f"min_tokens is {request.options.min_tokens} and there is a grammar, which alone says where the reply "
                "may end: leave one of them out"
            )
        if request.grammar is not None and self._grammars is None:
            raise RequestError("this engine was made without grammars: leave the grammar out")

    def warm_up(self) -> None:
        """Start, beside everything else, what the first grammar needs; without a grammar engine there is nothing."""
        if self._grammars is not None:
            with contextlib.suppress(RequestError):
                self._grammars.warm_up()

    def prepare(self, request: TokenRequest) -> Preparation | None:
        """Start what a checked request needs before it is opened. Raises RequestError."""
        if request.grammar is None or self._grammars is None:
            return None
        return self._grammars.submit(request.grammar)

    def run(self, step: Step) -> tuple[SlotResult, ...]:
        """Do one step. A request's failure is its result; any other exception is a mistake in the engine.

        What a window that was under way has given comes first; it may be for other slots than the step's. Raises
        DeviceLostError if the GPU gave up.
        """
        with naming_lost_device():
            return self._run(step)

    def _run(self, step: Step) -> tuple[SlotResult, ...]:
        if isinstance(step, Window):
            return self._results(self._windows.run(step))
        if isinstance(step, Abandon):
            return self._abandon(step.slot)
        late = tuple(result for result in self._results(self._windows.land()) if result.slot != step.slot)
        is_parked = isinstance(step, Open) and self._parking.make_way(step)
        try:
            own = self._open(step) if isinstance(step, Open) else self._read(step)
        except Exception as failure:
            if not is_requests_failure(failure):
                raise
            own = self._failed(step.slot, failure)
        changed = self._keeper.take_changed() & self._slots.keys() - {step.slot}
        others = {number: _points(self._slots[number]) for number in changed}
        return (*late, replace(own, others=others, is_parked=is_parked))

    @property
    def reads_as_windows(self) -> bool:
        """Whether a read row has the bits of a decoded one, so that reading again what was kept gives the same."""
        return self._model.reads_as_windows

    @property
    def reads_runs(self) -> bool:
        """Whether a read may go over many chunks, which pass several stages one behind the other."""
        return self._model.reads_runs

    @property
    def read_ahead(self) -> ReadAhead:
        """Of the prompt that is being read: what its device has to do."""
        return self._model.read_ahead

    def forget_all(self) -> None:
        """Empty every slot."""
        self._windows.forget()
        self._parking.finish()
        for number in list(self._slots):
            self._empty(number)

    def memory(self) -> Mapping[str, int]:
        """Bytes by use, as far as the engine knows them."""
        parked = self._parking.bytes_used()
        states = sum(slot.bytes_used() for slot in self._slots.values()) - parked
        used = {"states": states, "checkpoints": self._keeper.bytes_used(self._slots)}
        return used | ({"parked": parked} if self.parking.limit else {})

    def checkpoints(self) -> Mapping[str, int]:
        """See `Statistics.checkpoints`."""
        return self._keeper.counts(self._slots)

    def experts(self) -> Mapping[str, int]:
        """Routed experts computed so far, by where: see `Statistics.experts`."""
        counted = self._model.experts_counted
        rows = self._rows + self._windows.rows
        return {self._model.experts_place: rows * self._model.experts_per_row} if counted is None else counted

    def pages(self) -> Mapping[str, int]:
        """See `Statistics.pages`."""
        return self._model.pages_counted

    def experts_read(self) -> Mapping[str, int]:
        """See `Statistics.experts_read`."""
        return self._model.experts_read

    @property
    def arrivals(self) -> int:
        """Experts and rows of tables that came from files so far. From any thread."""
        return self._model.arrivals

    @property
    def waiting_for(self) -> str | None:
        """What the step under way waits for beside the device, in a sentence; None if for nothing. From any thread."""
        return self._model.waiting_for

    def _open(self, step: Open) -> SlotResult:
        request, number = step.request, step.slot
        self._replies.pop(number, None)
        self._logprobs.pop(number, None)
        source = self._parking.source_of(step)
        if source is None or source != number:
            self._empty(number)  # its memory is free before another state takes more
        self._opened += 1
        notices: tuple[str, ...] = (LOST,) if source is None and step.source is not None else ()
        if source is not None and source in step.dropped:
            notices = self._parking.bring_back(source, step, self._opened)
            source = None if notices else number
        if source is None:
            slot = open_slot(self._model, drafting=self.is_drafting, use=self._opened)
        elif source not in self._slots:
            raise EngineError("the conversation that this one goes on from has just failed: ask again")
        elif source == number:
            slot = self._slots[number].continued(step.position, request.prompt, self._opened)
        else:
            slot = self._slots[source].forked(step.position, request.prompt, self._opened)
        grammar: Grammar | None = step.prepared
        self._slots[number] = slot
        self._parking.note_opened(slot)
        self._replies[number] = self._new_reply(request, grammar)
        if slot.position:
            self._keep_place(number)
        if request.prompt_logprobs is not None:
            self._logprobs[number] = PromptLogprobs(self._replies[number].prompt, request.prompt_logprobs)
        notices += grammar.notices if grammar is not None else ()
        return SlotResult(number, points=_points(slot), notices=notices, begins_anew=slot.position < step.position)

    def _keep_place(self, number: int) -> None:
        """The slot goes on from somewhere: others may go on from there, too."""
        slot = self._slots[number]
        is_point = bool(slot.points) and slot.points[-1].position == slot.position
        self._keeper.make_room(self._slots, number, () if is_point else (slot.position,))
        if is_point:
            self._keeper.note_hit(slot.position)
        else:
            slot.add_point()

    def _new_reply(self, request: TokenRequest, grammar: Grammar | None) -> Reply:
        room = self.context - len(request.prompt)
        width, options = self._model.vocabulary_size, request.options
        sampler = Sampler(options, width, request.prompt, request.choice, grammar=grammar)
        if options.min_tokens:
            sampler.hold_back(request.stop_token_ids, len(request.prompt) + options.min_tokens)
        return Reply(
            request,
            sampler,
            torch.tensor(request.prompt),
            budget=min(options.max_tokens or room, room),
        )

    def _read(self, step: Read) -> SlotResult:
        number = step.slot
        slot, reply, logprobs = self._slots[number], self._replies[number], self._logprobs.get(number)
        if self._parking.moves_on():
            return SlotResult(number, is_under_way=True, points=_points(slot))
        is_last = step.stop == len(reply.prompt)
        piece = self._pieces.get(number)
        if piece is None:
            if is_last:
                reply.sampler.prepare()
            self._rows += step.stop - slot.position
            granted = self._keeper.begin_read(self._slots, number, step.points)
            piece = self._pieces[number] = Piece(slot, reply, replace(step, points=granted), logprobs, self._depth)
        outcome = piece.advance()
        if outcome is None:
            return SlotResult(number, is_under_way=True, read_rows=piece.read_rows, points=_points(slot))
        del self._pieces[number]
        self._keeper.end_read(self._slots, number)
        if outcome.reason is not None:
            del self._replies[number]
        if is_last:
            self._logprobs.pop(number, None)
        return SlotResult(
            number,
            outcome.draws,
            outcome.reason,
            prompt_logprobs=tuple(logprobs.draws) if is_last and logprobs is not None else None,
            points=_points(slot),
        )

    def _abandon(self, number: int) -> tuple[SlotResult, ...]:
        """The slot stands at its last point, or is empty: without one, or where there is no way back to it."""
        piece = self._pieces.pop(number, None)
        if piece is None:
            return ()
        slot = self._slots[number]
        try:
            if piece.cancel() and slot.points:
                slot.abandon_read()
        except Exception as failure:
            if not is_requests_failure(failure):
                raise
            return (self._failed(number, failure),)
        self._keeper.end_read(self._slots, number)
        if not slot.points:
            self._empty(number)
        return ()

    def _results(self, given: Iterable[Given]) -> tuple[SlotResult, ...]:
        return tuple(self._window_result(each) for each in given)

    def _window_result(self, given: Given) -> SlotResult:
        number, outcome = given.slot, given.outcome
        if isinstance(outcome, Exception):
            return self._failed(number, outcome)
        if outcome.reason is not None:
            del self._replies[number]
        return SlotResult(
            number,
            outcome.draws,
            outcome.reason,
            drafted=given.drafted,
            accepted=len(outcome.draws) - 1,
            points=_points(self._slots[number]),
        )

    def _empty(self, number: int) -> None:
        """Let go of a slot and of what was under way in it."""
        piece, slot = self._pieces.pop(number, None), self._slots.pop(number, None)
        self._replies.pop(number, None)
        self._logprobs.pop(number, None)
        self._keeper.end_read(self._slots, number)
        try:
            if piece is not None:
                piece.cancel()
        finally:
            if slot is not None:
                slot.release()

    def _failed(self, number: int, failure: Exception) -> SlotResult:
        """What a request ends with; its slot's state may be half changed and is gone."""
        self._empty(number)
        return SlotResult(number, error=request_error(failure), is_callers_mistake=isinstance(failure, RequestError))


def _points(slot: Slot) -> tuple[int, ...]:
    return tuple(point.position for point in slot.points)
