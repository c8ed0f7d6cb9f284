"""What llama.cpp said, as small as it can be kept: the likeliest tokens of a row and the share of all others.

Knows how such a record is packed, and how far given logits are from it. Knows no model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEAR_TIE = 0.25  # nats: what rounding activations to 8 bits moves
_STEPS = 4096.0  # of a log share: steps of 1/4096 down to -16


@dataclass(frozen=True)
class KeptRows:
    """Log shares of the `kept` likeliest tokens of each row, best first; or of all tokens in the order of their ids."""

    token_ids: NDArray[np.uint16]  # [rows, kept]
    codes: NDArray[np.uint16]  # [rows, kept]: -4096 times the log share, rounded

    @property
    def log_shares(self) -> NDArray[np.float64]:
        """[rows, kept]"""
        return self.codes.astype(np.float64) / -_STEPS


@dataclass(frozen=True)
class Agreement:
    """How near another model's rows are to the kept ones."""

    rows: int
    same_best: float  # share of rows with the same likeliest token
    clear_rows: int  # whose likeliest token leads the second by more than NEAR_TIE in the kept rows
    same_clear: float  # share of those with the same likeliest token
    widest_parting: float  # the reference's largest margin, in nats, at a row where the likeliest tokens differ
    mean_kl: float  # over the kept tokens and one bin for the others: at most the KL of all tokens
    median_kl: float  # what a few rows with other experts do not move
    largest_kl: float
    flips: int  # choices of experts (row, layer) that differ; 0 where nobody watched
    unflipped_rows: int
    unflipped_kl: float  # the mean over rows whose experts are the same in every layer


def keep(logits: NDArray[np.floating[Any]], kept: int) -> KeptRows:
    """The record of logits [rows, vocabulary]."""
    log_shares = _log_softmax(logits)
    token_ids = np.argsort(-log_shares, axis=1, kind="stable")[:, :kept]
    if kept == logits.shape[1]:
        token_ids = np.broadcast_to(np.arange(kept), logits.shape)  # no order to remember: a smaller file
    best = np.take_along_axis(log_shares, token_ids, axis=1)
    codes = np.clip(np.rint(-best * _STEPS), 0, 65535).astype(np.uint16)
    return KeptRows(token_ids.astype(np.uint16), codes)


def agree(
    reference: KeptRows, logits: NDArray[np.floating[Any]], flipped: NDArray[np.bool_] | None = None
) -> Agreement:
    """Compare logits [rows, vocabulary] with a record of the same rows.

    flipped [layers, rows]: where the two chose other experts.
    """
    assert len(logits) == len(reference.token_ids)
    flipped = np.zeros((0, len(logits)), bool) if flipped is None else flipped
    kl = divergences(reference, logits)
    best = np.take_along_axis(reference.token_ids, reference.log_shares.argmax(axis=1)[:, None], axis=1)[:, 0]
    same = logits.argmax(axis=1) == best
    leads = margins(reference)
    clear = leads > NEAR_TIE
    unflipped = ~flipped.any(axis=0)
    return Agreement(
        rows=len(logits),
        same_best=float(same.mean()),
        clear_rows=int(clear.sum()),
        same_clear=float(same[clear].mean()) if clear.any() else 1.0,
        widest_parting=float(leads[~same].max()) if not same.all() else 0.0,
        mean_kl=float(kl.mean()),
        median_kl=float(np.median(kl)),
        largest_kl=float(kl.max()),
        flips=int(flipped.sum()),
        unflipped_rows=int(unflipped.sum()),
        unflipped_kl=float(kl[unflipped].mean()) if unflipped.any() else 0.0,
    )


def divergences(reference: KeptRows, logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """KL of each row of logits from the kept one, over the kept tokens and one bin for all others [rows]."""
    mine = np.take_along_axis(_log_softmax(logits), reference.token_ids.astype(np.int64), axis=1)
    theirs, is_whole = reference.log_shares, reference.token_ids.shape[1] == logits.shape[1]
    if is_whole:  # the steps of a record would count at first order if its shares did not sum to 1
        theirs = _log_softmax(theirs)
    shares = np.exp(theirs)
    kl: NDArray[np.float64] = (shares * (theirs - mine)).sum(axis=1)
    rest, my_rest = 1.0 - shares.sum(axis=1), 1.0 - np.exp(mine).sum(axis=1)
    has_rest = (rest > 1e-4) & (my_rest > 1e-12) & (not is_whole)
    kl += np.where(has_rest, rest * np.log(np.where(has_rest, rest / np.maximum(my_rest, 1e-12), 1.0)), 0.0)
    return kl


def margins(reference: KeptRows) -> NDArray[np.float64]:
    """How far the likeliest token of each row leads the second, in nats [rows]."""
    ranked = np.sort(reference.log_shares, axis=1)
    lead: NDArray[np.float64] = ranked[:, -1] - ranked[:, -2]
    return lead


def _log_softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))
