"""Weights over several stages: each tensor is held where its layer is, and is what one device would hold."""

import pytest
import torch

from strata.models.device.describe import StagePlace, describe, describe_parts
from strata.models.device.held import DeviceMatrices, DeviceTable
from strata.models.device.layer_split import LayerSplit
from strata.models.device.skeleton import SkeletonWeights
from strata.models.device.split_weights import PlacedWeights, SplitWeights, names_by_stage
from strata.models.device.weights import DeviceWeights
from strata.quant.packed import PackedMatrix
from tests.gpu.tiny_models import TinyModel, tiny_model

CPU = torch.device("cpu")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def split_weights(tiny: TinyModel, split: LayerSplit, here: tuple[int, ...]) -> SplitWeights:
    stages: list[PlacedWeights] = [
        DeviceWeights(tiny.source, names, CPU)
        if number in here
        else SkeletonWeights(tiny.source, names, torch.device("meta"))
        for number, names in enumerate(names_by_stage(split, tiny.names))
    ]
    return SplitWeights(split, stages)


def bytes_of(matrices: tuple[PackedMatrix, ...]) -> list[torch.Tensor]:
    return [matrix.codes for matrix in matrices]


def test_every_tensor_has_a_stage_and_a_tied_embedding_two() -> None:
    tiny = tiny_model("qwen4_exp", "code8")
    split = LayerSplit.of(tiny.config.num_layers, (1, 3))
    named = names_by_stage(split, tiny.names)
    assert set().union(*named) == set(tiny.names)
    assert {int(name.split(".")[2]) for name in named[1]} == {1, 2}
    assert HEAD not in tiny.names and EMBEDDING in named[0] and EMBEDDING in named[2] and EMBEDDING not in named[1]
    untied = names_by_stage(split, [*tiny.names, HEAD])
    assert EMBEDDING in untied[0] and EMBEDDING not in untied[2] and HEAD in untied[2]
    assert names_by_stage(LayerSplit(split.layers), tiny.names) == (tiny.names,)


@pytest.mark.parametrize("family", ["qwen4_exp", "qwen3_next"])
def test_parts_of_a_model_hold_what_the_whole_one_does(family: str) -> None:
    tiny = tiny_model(family, "code4" if family == "qwen3_next" else "code8")
    whole = describe(tiny.family.build(tiny.config, DeviceWeights(tiny.source, tiny.names, CPU)), CPU)
    split = LayerSplit.of(tiny.config.num_layers, (1,))
    built = tiny.family.build(tiny.config, split_weights(tiny, split, (0, 1)))
    first, last = describe_parts(built, split, [StagePlace(CPU), StagePlace(CPU)])
    assert len(first.layers) + len(last.layers) == len(whole.layers)
    for mine, theirs in zip((*first.layers, *last.layers), whole.layers, strict=True):
        assert all(map(torch.equal, bytes_of(mine.mixer.out.parts), bytes_of(theirs.mixer.out.parts)))
    assert whole.head is not None and last.head is not None
    assert all(map(torch.equal, bytes_of(last.head.parts), bytes_of(whole.head.parts)))
    assert all(map(torch.equal, bytes_of(first.embedding), bytes_of(whole.embedding)))


def test_of_a_stage_that_is_elsewhere_no_value_is_read() -> None:
    tiny = tiny_model("qwen4_exp", "code8")
    split = LayerSplit.of(tiny.config.num_layers, (2,))
    weights = split_weights(tiny, split, (1,))
    table, matrix = weights.table(EMBEDDING), weights.matrix(EMBEDDING)
    assert isinstance(table, DeviceTable) and table.parts[0].codes.device.type == "meta"
    assert isinstance(matrix, DeviceMatrices) and matrix.parts[0].codes.device == CPU
    (part,) = describe_parts(tiny.family.build(tiny.config, weights), split, [None, StagePlace(CPU)])
    assert part.is_last and not part.is_first and len(part.layers) == tiny.config.num_layers - 2
