"""Attention of a window's rows on a GPU: four launches, each in the file of its step. Knows their names."""

from strata.kernels.attention_rows.attend import attention_attend
from strata.kernels.attention_rows.choose import attention_choose
from strata.kernels.attention_rows.prepare import attention_prepare

__all__ = ["attention_attend", "attention_choose", "attention_prepare"]
