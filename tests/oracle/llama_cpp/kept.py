"""What llama.cpp said, as small as it can be kept: the likeliest tokens of a row and the share of all others.

Knows how such a record is packed, and how far given logits are from it. Knows no model.
"""

from dataclasses import dataclass

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
    mean_kl: float  # over the kept tokens and one bin for the others: at most the KL of all tokens
    largest_kl: float


def keep(logits: NDArray[np.float32], kept: int) -> KeptRows:
    """The record of logits [rows, vocabulary]."""
    log_shares = _log_softmax(logits)
    token_ids = np.argsort(-log_shares, axis=1, kind="stable")[:, :kept]
    if kept == logits.shape[1]:
        token_ids = np.broadcast_to(np.arange(kept), logits.shape)  # no order to remember: a smaller file
    best = np.take_along_axis(log_shares, token_ids, axis=1)
    codes = np.clip(np.rint(-best * _STEPS), 0, 65535).astype(np.uint16)
    return KeptRows(token_ids.astype(np.uint16), codes)


def agree(reference: KeptRows, logits: NDArray[np.float32]) -> Agreement:
    """Compare logits [rows, vocabulary] with a record of the same rows."""
    assert len(logits) == len(reference.token_ids)
    mine = np.take_along_axis(_log_softmax(logits), reference.token_ids.astype(np.int64), axis=1)
    theirs = reference.log_shares
    shares = np.exp(theirs)
    kl = (shares * (theirs - mine)).sum(axis=1)
    rest, my_rest = 1.0 - shares.sum(axis=1), 1.0 - np.exp(mine).sum(axis=1)
    has_rest = (rest > 1e-4) & (my_rest > 1e-12) & (reference.token_ids.shape[1] < logits.shape[1])
    kl += np.where(has_rest, rest * np.log(np.where(has_rest, rest / np.maximum(my_rest, 1e-12), 1.0)), 0.0)
    best = np.take_along_axis(reference.token_ids, theirs.argmax(axis=1)[:, None], axis=1)[:, 0]
    same = logits.argmax(axis=1) == best
    ranked = np.sort(theirs, axis=1)
    clear = ranked[:, -1] - ranked[:, -2] > NEAR_TIE
    return Agreement(
        rows=len(logits),
        same_best=float(same.mean()),
        clear_rows=int(clear.sum()),
        same_clear=float(same[clear].mean()) if clear.any() else 1.0,
        mean_kl=float(kl.mean()),
        largest_kl=float(kl.max()),
    )


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))
