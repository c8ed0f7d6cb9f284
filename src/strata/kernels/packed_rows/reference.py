"""Packed matrix times rows as it is defined. Knows nothing of its own: the definition is that of the expert's rows."""

from strata.kernels.expert_rows.reference import matrix_rows as packed_rows

__all__ = ["packed_rows"]
