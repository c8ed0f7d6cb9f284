"""One conversation's place in the engine: its state in the model and in the draft layer, and the ways back in both.

Knows the contracts of model, draft layer and checkpoints; which points are worth their memory is decided for all slots
together (`points.py`).

    points   where another request may go on: multiples of 64 inside prompts, the places where a kept turn began; one
             that is only passing, where a piece of a prompt ended, goes when the next one comes
    marks    inside the last reply: its start and the last two places at least 16 rows apart, from which any row of it
             is found again by running its tokens as windows, which gives the same bits as decoding them did

The start of a reply is kept as a point is; the other marks are taken again and again and may be copies in fixed places.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from strata.models.base import LanguageModel, LogitRows, Reading, Segment
from strata.speculation.mtp import SlotDrafts
from strata.state import moving
from strata.state.checkpoints import checkpoint_bytes, fork, go_back, take_checkpoint

MARK_ROWS = 16  # between two marks
RECENT_MARKS = 2
REPLAY_ROWS = 32  # of one window


@dataclass(frozen=True)
class Checkpoint:
    """A slot as it was behind `position` rows."""

    position: int
    state: Any
    drafts: Any
    use: int = 0  # number of the last request that took it or went on from it
    is_passing: bool = False


@dataclass
class Slot:
    """State that moves forward with every committed row. Made by `open_slot`, or from another by `continued`."""

    model: LanguageModel
    state: Any  # the family's SlotState
    drafts: SlotDrafts | None  # None: nothing is drafted
    points: list[Checkpoint] = field(default_factory=list)
    marks: list[Checkpoint] = field(default_factory=list)
    use: int = 0  # number of the request that has it
    is_parked: bool = False  # the state lies in main memory, where nothing is computed

    @property
    def position(self) -> int:
        """Rows that are part of the state."""
        return self.state.position

    @property
    def lasting_points(self) -> list[Checkpoint]:
        """The points that do not go by themselves."""
        return [point for point in self.points if not point.is_passing]

    def begin_read(self, token_ids: torch.Tensor, logit_rows: LogitRows, marks: Sequence[int]) -> Reading:
        """Read rows of a prompt into the state; the draft layer is told by the caller, who may know the next token.

        marks: see `LanguageModel.begin_read`.
        """
        return self.model.begin_read(Segment(self.state, token_ids), logit_rows, marks)

    def abandon_read(self) -> None:
        """A read was cancelled: go back to the last point, of which there is one."""
        self.state = go_back(self.state, self.points[-1].state)
        if self.drafts is not None:
            self.drafts.go_back(self.points[-1].drafts)

    def add_point_at(self, state: Any) -> None:
        """Keep the place that a read passed and whose `checkpoint` this is; of a model without a draft layer."""
        self.points = [*self.lasting_points, Checkpoint(state.position, state, None, self.use)]

    def add_point(self, *, is_passing: bool = False) -> None:
        """Keep this place for other requests; there is room for it."""
        self.points = [*self.lasting_points, replace(self._checkpoint(), is_passing=is_passing)]

    def give_up(self, positions: Collection[int]) -> None:
        """Let go of the points at these positions; the one where the slot stands only when the next one comes."""
        here = None if self.is_parked else self.position
        kept = [point for point in self.points if point.position == here or point.position not in positions]
        self.points = [replace(each, is_passing=True) if each.position in positions else each for each in kept]

    def begin_reply(self) -> None:
        """The state stands at the end of the prompt."""
        self.marks = [self._checkpoint()]

    def note_progress(self) -> None:
        """Rows of the reply were committed: keep this place if the last one is far enough behind."""
        if self.is_mark_due():
            self.add_mark(self.take_mark())

    def is_mark_due(self, coming_rows: int = 0) -> bool:
        """Whether the last mark will be far enough behind when so many more rows are part of the state."""
        return self.position + coming_rows - self.marks[-1].position >= MARK_ROWS

    def take_mark(self) -> Any:
        """The model's state as it is now, for `add_mark`; on a device that is behind every window launched so far."""
        return take_checkpoint(self.state, is_mark=True)

    def add_mark(self, state: Any) -> None:
        """Keep a way back to this position, where `take_mark` gave `state`."""
        drafts = None if self.drafts is None else self.drafts.checkpoint()
        self.marks.append(Checkpoint(self.position, state, drafts))
        del self.marks[1:-RECENT_MARKS]

    def continued(self, position: int, tokens: Sequence[int], use: int) -> "Slot":
        """This slot behind the first `position` rows of its conversation, whose tokens are given; later ones go.

        use: number of the request that goes on. Where there is no point at `position` yet, the caller may add it.
        """
        self.use = use
        if position != self.position:
            nearest = self._nearest(position)
            self.state = go_back(self.state, nearest.state)
            if self.drafts is not None:
                self.drafts.go_back(nearest.drafts)
        return self._moved_to(position, tokens)

    def forked(self, position: int, tokens: Sequence[int], use: int) -> "Slot":
        """Another slot behind the first `position` rows of this one's conversation; this one stays as it is.

        It shares the first point and the last one, which take no more memory. use: as in `continued`.
        """
        is_here = position == self.position and all(point.position != position for point in self.points)
        nearest = self._checkpoint() if is_here else self._nearest(position)
        drafts = None if self.drafts is None else self.drafts.fork(nearest.drafts)
        shared = [point for point in self.points if point.position <= position]
        other = Slot(self.model, fork(self.state, nearest.state), drafts, shared[:1] + shared[1:][-1:], use=use)
        try:
            return other._moved_to(position, tokens)
        except BaseException:
            other.release()
            raise

    def park(self, tokens: Sequence[int]) -> bool:
        """Move what these rows left behind to main memory; later ones go. Nobody goes on here before `unpark`.

        False: there is no room for it, and it stays. Otherwise its place is free, and passing points want room.
        """
        self.continued(len(tokens), tokens, self.use)
        parked = moving.park(self.state)
        if parked is None:
            return False
        self._leave(parked)
        self.is_parked = True
        self.points = [replace(point, is_passing=False) for point in self.points]  # no read comes that would end one
        return True

    def unpark(self) -> None:
        """Have a place again. Raises EngineError if none is free."""
        self._leave(moving.unpark(self.state))
        self.is_parked = False

    def moves_on(self) -> bool:
        """Launch the next part of what is still to be copied to or from main memory; False: nothing is."""
        return moving.moves_on(self.state)

    def release(self) -> None:
        """Nothing is done with this slot any more: the model may give its place to another conversation."""
        self.model.release(self.state)

    def bytes_used(self) -> int:
        """Bytes of the state and of what its marks keep; points are counted for all slots together."""
        drafts = 0 if self.drafts is None else self.drafts.bytes_used()
        kept = sum(checkpoint_bytes(mark.state) for mark in self.marks)
        return self.state.bytes_used() + drafts + kept

    def _leave(self, state: Any) -> None:
        if state is not self.state:
            self.model.release(self.state)
        self.state = state

    def _nearest(self, position: int) -> Checkpoint:
        """The last checkpoint at or in front of `position`; there is one wherever a request may go on."""
        return max((each for each in (*self.points, *self.marks) if each.position <= position), key=_position)

    def _moved_to(self, position: int, tokens: Sequence[int]) -> "Slot":
        """Decode again what lies between the checkpoint and `position`; drop the ways to what is gone."""
        self.marks = []
        self.points = [point for point in self.points if point.position <= position]
        most = min(REPLAY_ROWS, self.model.most_window_rows or REPLAY_ROWS)
        while self.position < position:
            rows = torch.tensor(tokens[self.position : min(position, self.position + most)])
            window = self.model.window([Segment(self.state, rows)])
            self.model.commit(window, [len(rows)])
            if self.drafts is not None:
                self.drafts.follow(window.output.hidden, rows)
        if self.points and self.points[-1].position == position:
            self.points[-1] = replace(self.points[-1], use=self.use, is_passing=False)
        return self

    def _checkpoint(self) -> Checkpoint:
        drafts = None if self.drafts is None else self.drafts.checkpoint()
        return Checkpoint(self.position, take_checkpoint(self.state), drafts, self.use)


def open_slot(model: LanguageModel, *, drafting: bool, use: int) -> Slot:
    """An empty slot of request number `use`; it drafts if that is wanted and the model has a draft layer."""
    head = model.draft_head if drafting else None
    return Slot(model, model.new_state(), SlotDrafts(head) if head is not None else None, use=use)


def _position(checkpoint: Checkpoint) -> int:
    return checkpoint.position
