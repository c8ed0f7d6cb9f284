"""What the sampler's kernels write between themselves and for others. Knows sizes; no arithmetic."""

from dataclasses import dataclass

import torch

PROGRAMS_A_ROW = 64  # that share the vocabulary
TOKENS_A_BLOCK = 1024  # that a program looks at together

# Histograms of a row, one after another: coarse bins of all distances, then two finer ones for each of two filters.
COARSE_BINS = 2048
FINE_BINS = 1024
BINS_A_ROW = COARSE_BINS + 4 * FINE_BINS

# Words of one search for the last token that a filter keeps; a row has two filters of two searches.
SEARCH_WORDS = 4


@dataclass(frozen=True)
class ChosenTokens:
    """int32 [rows] each, on the computing device."""

    tokens: torch.Tensor  # -1: the row is unused, or is_finite is 0
    is_finite: torch.Tensor  # 0: NaN or inf among the logits, or nothing but -inf; and of unused rows

    @classmethod
    def empty(cls, rows: int, device: torch.device | str) -> "ChosenTokens":
        """Room for the rows of a bucket."""
        tokens = torch.full((rows,), -1, dtype=torch.int32, device=device)
        return cls(tokens, torch.zeros(rows, dtype=torch.int32, device=device))


@dataclass(frozen=True)
class ChoiceScratch:
    """Room for what the launches of `choose_tokens` tell one another; 75 KB a row. Any content to begin with."""

    winners: torch.Tensor  # int64 [rows, 2, programs a row]: each program's best logit and best score, with their ids
    counts: torch.Tensor  # int32 [rows, BINS_A_ROW]
    weights: torch.Tensor  # int64 [rows, BINS_A_ROW]
    searches: torch.Tensor  # int64 [rows, 2, 2, SEARCH_WORDS]
    block: int = TOKENS_A_BLOCK

    @property
    def programs(self) -> int:
        """That share a row."""
        return self.winners.shape[2]

    @classmethod
    def empty(
        cls,
        rows: int,
        device: torch.device | str,
        programs: int = PROGRAMS_A_ROW,
        block: int = TOKENS_A_BLOCK,
    ) -> "ChoiceScratch":
        """Room for the rows of a bucket. Powers of two; which ones changes no result."""
        return cls(
            torch.zeros(rows, 2, programs, dtype=torch.int64, device=device),
            torch.zeros(rows, BINS_A_ROW, dtype=torch.int32, device=device),
            torch.zeros(rows, BINS_A_ROW, dtype=torch.int64, device=device),
            torch.zeros(rows, 2, 2, SEARCH_WORDS, dtype=torch.int64, device=device),
            block,
        )
