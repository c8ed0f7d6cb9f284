"""A skeleton has the layouts of the model that is loaded, of directories as they are, quantized, and of GGUF files."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.models.device.describe import describe
from strata.models.device.skeleton import SkeletonWeights
from strata.models.device.weights import DeviceWeights
from strata.models.families import family_of
from strata.quant.packed import PackedMatrix
from strata.weights.opening import ModelSource, open_model
from tests.gpu.tiny_models import MODELS, tiny_model
from tests.weights.gguf_models import gguf

CPU = torch.device("cpu")


def shape_of(value: Any) -> Any:
    """A description without values: layouts, shapes, sizes."""
    if isinstance(value, PackedMatrix):
        return value.layout
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    if isinstance(value, tuple | list):
        return [shape_of(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: shape_of(getattr(value, field.name)) for field in fields(value)}
    return value


def both(source: ModelSource) -> tuple[Any, Any]:
    family = family_of(source.config)
    config, names = family.parse_config(source.config), [n for n in source.names() if not n.startswith("mtp.")]
    kinds = SkeletonWeights(source, names, CPU), DeviceWeights(source, names, CPU)
    first, second = (shape_of(describe(family.build(config, weights), CPU)) for weights in kinds)
    return first, second


@pytest.mark.parametrize("name", MODELS, ids="-".join)
def test_of_directories(name: tuple[str, str]) -> None:
    skeleton, whole = both(tiny_model(*name).source)
    assert skeleton == whole


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_of_gguf_files(kind: str) -> None:
    path: Path = gguf("qwen3_5_moe", kind)
    skeleton, whole = both(open_model(path))
    assert skeleton == whole


def test_all_matrices_share_one_piece_of_memory() -> None:
    source = tiny_model("qwen3_moe", "code8").source
    weights = SkeletonWeights(source, list(source.names()), CPU)
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in ("q", "k", "v")]
    first, second = weights.matrix(*names), weights.matrix(*names)
    assert first.parts[0].codes.data_ptr() == second.parts[0].codes.data_ptr()  # type: ignore[union-attr]
