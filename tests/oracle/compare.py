"""Compares Strata's logits with the oracle's for one random case, in float64 and in float32.

Knows the contract of a model family; knows no family and no config field.
"""

from dataclasses import dataclass

import torch

from strata.models.base import LanguageModel, LogitRows, Segment
from strata.models.families import family_of
from strata.weights.source import MemorySource
from tests.oracle import transformers_model
from tests.oracle.configs import Case

CLEAR_MARGIN = 1e-5  # below it float32 may choose another expert or block than float64


@dataclass(frozen=True)
class Comparison:
    """Differences of all logits of one case."""

    num_rows: int
    logit_scale: float  # standard deviation of the oracle's logits
    max_diff_float64: float
    max_diff_float32: float  # over rows whose selections, and those of all rows before, are clear
    max_diff_float32_any: float  # over all rows
    max_diff_float32_oracle: float  # the oracle's own float32 against its float64, over clear rows
    num_clear_rows: int


def load(case: Case, tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> LanguageModel:
    """Strata's model of a case with the oracle's tensors."""
    family = family_of(case.config)
    return family.load(family.parse_config(case.config), MemorySource(tensors), dtype)


def read_all(model: LanguageModel, token_ids: list[int]) -> torch.Tensor:
    """Logits of every row [rows, vocabulary], read at once."""
    segment = Segment(model.new_state(), torch.tensor(token_ids))
    return model.read([segment], LogitRows.ALL).logits


@torch.no_grad()
def compare(case: Case) -> Comparison:
    """Run the oracle and Strata on a case."""
    oracle = transformers_model.build(case)
    expected, margins = transformers_model.logits_and_margins(oracle, case)
    tensors = transformers_model.canonical_tensors(oracle, case)
    diff64 = (read_all(load(case, tensors, torch.float64), case.token_ids) - expected).abs()
    diff32 = _row_diff(read_all(load(case, tensors, torch.float32), case.token_ids), expected)
    oracle32 = _row_diff(transformers_model.float32_logits(oracle, case), expected)
    # A row reads what the rows before it left behind, so their near-ties are its own.
    clear = margins.cummin(dim=0).values > CLEAR_MARGIN
    return Comparison(
        num_rows=len(case.token_ids),
        logit_scale=float(expected.std()),
        max_diff_float64=float(diff64.max()),
        max_diff_float32=_max(diff32[clear]),
        max_diff_float32_any=_max(diff32),
        max_diff_float32_oracle=_max(oracle32[clear]),
        num_clear_rows=int(clear.sum()),
    )


def _row_diff(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Largest difference in each row [rows]."""
    return (logits.double() - expected).abs().amax(dim=1)


def _max(values: torch.Tensor) -> float:
    return float(values.max()) if len(values) else 0.0
