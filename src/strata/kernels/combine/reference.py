"""Combining rows as it is defined. Knows nothing of its own: the definition stands with that of the experts' rows."""

from strata.kernels.expert_rows.reference import combine

__all__ = ["combine"]
