"""One reply's grammar while it is decoded: which tokens may come next, for every row of a window with drafts.

Knows a matcher of the grammar engine and token ids; no logits and no text. Where the grammar stands is moved by
`commit` alone: looking ahead over drafts is undone before anything else happens, so that drafts change nothing.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Protocol

from strata.errors import EngineError
from strata.sampling.token_mask import TokenMask, allows, mask_of_bytes, mask_without


class Matcher(Protocol):
    """What is used of the grammar engine's matcher: a position in a grammar that moves with tokens."""

    def compute_bitmask(self) -> bytes:
        """The tokens that may come next, the end-of-text ids among them where the grammar may stop."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        """Move over tokens; returns how many of them were allowed."""

    def rollback(self, num_tokens: int) -> bool:
        """Move back over the last tokens."""

    def is_stopped(self) -> bool:
        """Nothing but the end may come."""

    def is_accepting(self) -> bool:
        """The text may end here."""

    def is_error(self) -> bool:
        """It failed and answers nothing any more."""

    def get_error(self) -> str:
        """Why it failed."""


@dataclass(frozen=True)
class TokenLimits:
    """What a grammar has to know of a model's tokens."""

    width: int  # of the logits
    end_ids: frozenset[int]


class Grammar:
    """The constraint of one reply. Used by one thread at a time; `prepare` computes in the worker's.

    `begins_after`: a token id up to which, that one included, everything may come except the end (unless the grammar
    allows an empty text). `notices` are sentences for whoever asked for the grammar.
    """

    def __init__(
        self,
        matcher: Matcher,
        limits: TokenLimits,
        worker: Executor,
        begins_after: int | None = None,
        notices: tuple[str, ...] = (),
    ) -> None:
        self.notices = notices
        self.is_finished = False  # nothing but the end may come, or it has come: the reply is over
        self._matcher = matcher
        self._limits = limits
        self._worker = worker
        self._begins_after = begins_after
        self._has_begun = begins_after is None
        may_be_empty = matcher.is_accepting()
        self._mask_before = mask_without(limits.width, () if may_be_empty else limits.end_ids)
        self._prepared: tuple[tuple[int, ...], Future[list[TokenMask]]] | None = None

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        """Start computing the masks of the next window, to be ready when its logits are."""
        self._settle()
        self._prepared = tuple(drafts), self._worker.submit(self._look_ahead, tuple(drafts))

    def masks(self, drafts: Sequence[int] = ()) -> list[TokenMask]:
        """The masks of a window's rows: row i is what may come behind `drafts[:i]`.

        Rows that no choice can reach are left out: those behind a draft that is not allowed, that ends the reply or
        that finishes the grammar. There is one row at least. Raises EngineError if the grammar takes too much work.
        """
        if self._prepared is not None:
            known, future = self._prepared
            if known[: len(drafts)] == tuple(drafts):
                return future.result()[: len(drafts) + 1]
        self._settle()
        return self._look_ahead(drafts)

    def commit(self, token_ids: Iterable[int]) -> None:
        """These tokens are now part of the reply. Raises EngineError if one of them was not allowed."""
        self._settle()
        for token_id in token_ids:
            if token_id in self._limits.end_ids:
                self.is_finished = True
            elif self._has_begun:
                self._advance(token_id)
                self.is_finished = self._matcher.is_stopped()
            else:
                self._has_begun = token_id == self._begins_after

    def _settle(self) -> None:
        """The matcher is used by one thread at a time: wait for the worker, and forget what it made."""
        if self._prepared is not None:
            _, future = self._prepared
            self._prepared = None
            if not future.cancel():
                future.exception()

    def _look_ahead(self, drafts: Sequence[int]) -> list[TokenMask]:
        masks = [self._mask(self._has_begun)]
        has_begun, advanced = self._has_begun, 0
        for draft in drafts:
            if draft in self._limits.end_ids or not allows(masks[-1], draft):
                break
            if has_begun:
                self._advance(draft)
                advanced += 1
                if self._matcher.is_stopped():
                    break
            has_begun = has_begun or draft == self._begins_after
            masks.append(self._mask(has_begun))
        if advanced and not self._matcher.rollback(advanced):
            raise EngineError(f"the grammar cannot go back over drafts: {first_line(self._matcher.get_error())}")
        return masks

    def _mask(self, has_begun: bool) -> TokenMask:
        if not has_begun:
            return self._mask_before
        mask = mask_of_bytes(self._matcher.compute_bitmask(), self._limits.width)
        if self._matcher.is_error():
            raise EngineError(f"the grammar cannot go on at this place: {first_line(self._matcher.get_error())}")
        return mask

    def _advance(self, token_id: int) -> None:
        if self._matcher.try_consume_tokens([token_id]) != 1:
            why = first_line(self._matcher.get_error()) or "it is not allowed there"
            raise EngineError(f"token id {token_id} does not follow the grammar: {why}")


def first_line(error: str) -> str:
    """What the grammar engine says went wrong, without its inner state."""
    return error.split("\n<", 1)[0].split("\n", 1)[0].strip()
