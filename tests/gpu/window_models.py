"""The stages of the window checks: tiny models of every family, and four layers as published. Knows no check."""

from dataclasses import replace
from functools import cache

import torch

from strata.bench.synthetic_model import make_model, synthetic_config
from strata.engine.stage import ROW_BUCKETS, Stage, StageSizes
from strata.models.device.description import DeviceModel
from strata.models.device.synthetic import SyntheticForm
from strata.quant.cell_codes import CellKind
from tests.gpu.tiny_models import tiny_model

CUDA = torch.device("cuda")
PUBLISHED = "published"  # four layers of qwen4_exp: three delta nets, one of them with n-grams, and one attention
PUBLISHED_LAYERS = 4
SIZES = StageSizes(slots=4, context=1024, most_drafts=7)
PUBLISHED_SIZES = StageSizes(slots=8, context=8192, most_drafts=3)
KINDS = {  # of keys and values; of the others bf16
    "qwen4_exp-none": CellKind.F32,
    "qwen3_5_moe-code8": CellKind.Q4,
    "qwen3_next-code4": CellKind.INT8,
    "qwen3_moe-code8": CellKind.K8V4,
}
FEW_BUCKETS = (1, 4, 32)
EVERY_BUCKET = "qwen4_exp-code8"  # of the tiny ones; the others run with few, which compile faster
TINY = (EVERY_BUCKET, "qwen4_exp-none", "qwen3_5_moe-code8", "qwen3_next-code4", "qwen3_moe-code8", "llama-code4")


@cache
def device_model(name: str, device: torch.device) -> DeviceModel:
    """A model with all its weights on the device."""
    if name == PUBLISHED:
        return make_model(synthetic_config(PUBLISHED_LAYERS, is_tiny=False), SyntheticForm(), device)
    family, _, choice = name.rpartition("-")
    return tiny_model(family, choice).build(device)[1]


def buckets_of(name: str) -> tuple[int, ...]:
    """The row buckets that are run of a model."""
    return ROW_BUCKETS if name in (EVERY_BUCKET, PUBLISHED) else FEW_BUCKETS


def new_stage(name: str, device: torch.device) -> Stage:
    """A fresh stage."""
    sizes = replace(PUBLISHED_SIZES if name == PUBLISHED else SIZES, kv_kind=kind_of(name))
    return Stage(device_model(name, device), sizes, buckets_of(name))


def kind_of(name: str) -> CellKind:
    """How a model's keys and values are kept."""
    return KINDS.get(name, CellKind.BF16)
