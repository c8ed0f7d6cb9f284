"""Models of packed weights in C++ beside their torch twins, of the same weights. Knows no test."""

from collections.abc import Collection
from functools import cache
from typing import Any

import pytest
import torch

from strata.models.families import Family, family_of
from strata.models.fast.attach import attach_fast_windows
from strata.models.fast.loading import open_packed_weights
from strata.native import library
from strata.native.pool import Pool
from strata.weights.source import MemorySource, WeightSource
from tests.models.test_qwen3_contract import even_config, random_tensors
from tests.models.tiny_qwen4_exp import tiny_config, tiny_tensors

needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
FAMILIES = ("qwen4_exp", "qwen3_5_moe", "qwen3_next", "qwen3_moe", "llama")


def parts_of(name: str) -> tuple[Family, Any, MemorySource]:
    """A tiny model's family, config and weights."""
    config = tiny_config() if name == "qwen4_exp" else even_config(name)
    family = family_of(config)
    tensors = tiny_tensors() if name == "qwen4_exp" else random_tensors(config)
    return family, family.parse_config(config), MemorySource(tensors)


@cache
def torch_model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The slow twin."""
    family, config, source = parts_of(name)
    return family.load(config, source, dtype)


def packed_model(name: str, threads: int = 1) -> Any:
    """The torch twin over packed weights: blocks in torch, matrices and experts in the library."""
    family, config, source = parts_of(name)
    pool = Pool(threads, keeps_cores=False)
    return family.build(config, open_packed_weights(source, source.names(), pool))


@cache
def native_model(name: str, threads: int = 1) -> Any:
    """The fast twin: windows and reads in C++."""
    family, config, source = parts_of(name)
    return fast_model(family, config, source, source.names(), threads)


def fast_model(family: Family, config: Any, source: WeightSource, names: Collection[str], threads: int = 1) -> Any:
    """These weights in the C++ library, which computes windows and reads."""
    pool = Pool(threads, keeps_cores=False)
    model = family.build(config, open_packed_weights(source, names, pool))
    assert attach_fast_windows(model, pool)
    return model
