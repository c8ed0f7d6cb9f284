"""Matrices keep their published values and codes; what the C++ library computes with is what a read computes with."""

from pathlib import Path

import torch

from strata import models_shipped
from strata.models.fast.decoder import describe_model
from strata.models.fast.matrices import MatrixReader, TensorExperts, exact_code, pack_values
from strata.models.fast.parts import describe_dense_mlp
from strata.quant.layout import Code
from strata.weights.safetensors import open_model
from strata.weights.source import MemorySource
from tests.models.fast.twins import load, needs_library


def test_values_take_the_smallest_float_code_that_holds_them() -> None:
    values = torch.randn(5, 7)
    assert exact_code(values) is Code.F32
    assert exact_code(values.bfloat16().float()) is Code.BF16
    for each in (values, values.bfloat16().float()):
        assert torch.equal(pack_values(each).decode(), each)


def test_experts_of_tensors_keep_their_values() -> None:
    tensors = {"l.experts.gate_up_proj": torch.randn(3, 8, 32), "l.experts.down_proj": torch.randn(3, 32, 4)}
    experts = TensorExperts(MemorySource(tensors))
    assert (experts.layers(), experts.count("l.")) == (("l.",), 3)
    gate, up, down = experts.matrices("l.", 2)
    assert torch.equal(torch.cat((gate.decode(), up.decode())), tensors["l.experts.gate_up_proj"][2])
    assert torch.equal(down.decode(), tensors["l.experts.down_proj"][2])


@needs_library
def test_published_fp8_keeps_its_code() -> None:
    source = open_model(Path(models_shipped.default_path()))
    reader = MatrixReader(source, ())
    fp8 = [name for name in source.names() if source.stored_code(name) == "F8_E4M3" and len(source.shape(name)) == 2]
    group = reader.matrices(*fp8[:2])
    assert group.count == 2
    assert group.outputs == sum(source.shape(name)[0] for name in fp8[:2])
    (packed,) = reader._parts(fp8[0])
    assert packed.layout.code is Code.FP8
    assert torch.equal(packed.decode(), source.tensor(fp8[0], torch.float32))


@needs_library
def test_a_matrix_that_is_asked_for_twice_is_packed_once() -> None:
    reader = MatrixReader(MemorySource({"a": torch.randn(4, 32)}), ())
    assert reader.matrices("a").parts[0] == reader.matrices("a").parts[0]


@needs_library
def test_sizes_reach_the_library_as_the_config_says() -> None:
    model, source = load("llama")
    shape = describe_model(model, MatrixReader(source, ()))
    assert (shape.hidden, shape.layer_count, shape.streams) == (model.config.hidden_size, model.config.num_layers, 1)
    mlp = describe_dense_mlp(MatrixReader(source, ()), 24, "model.layers.0.mlp.")
    assert (mlp.width, mlp.router.count, mlp.gate_up.count) == (24, 0, 2)
