"""Models with windows in C++ beside their torch twins, of the same weights. Knows no test."""

from functools import cache
from typing import Any

import pytest
import torch

from strata.models import qwen4_exp
from strata.models.families import family_of
from strata.models.fast.attach import attach_fast_windows
from strata.native import library
from strata.native.pool import Pool
from strata.weights.source import MemorySource
from tests.models.test_qwen3_contract import even_config, random_tensors
from tests.models.tiny_qwen4_exp import tiny_config, tiny_tensors

needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
FAMILIES = ("qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe", "llama")


def load(family: str, dtype: torch.dtype = torch.float32) -> tuple[Any, MemorySource]:
    """A tiny model of a family, in torch, and where its weights are from."""
    if family == "qwen4_exp":
        source = MemorySource(tiny_tensors())
        return qwen4_exp.load(qwen4_exp.parse_config(tiny_config()), source, dtype), source
    config = even_config(family)
    source = MemorySource(random_tensors(config))
    found = family_of(config)
    return found.load(found.parse_config(config), source, dtype), source


@cache
def torch_model(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """The slow twin."""
    return load(family, dtype)[0]


@cache
def native_model(family: str, threads: int = 1) -> Any:
    """The fast twin; its reads are torch's too."""
    model, source = load(family)
    assert attach_fast_windows(model, source, Pool(threads, is_pinned=False))
    return model
