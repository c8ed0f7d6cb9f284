"""Matrices keep their published values and codes, whole or in pieces; what they will take is known before."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strata import models_shipped
from strata.cli.synth import synth
from strata.errors import WeightFileError
from strata.models.families import family_of
from strata.models.fast import packing
from strata.models.fast.packing import (
    TensorExperts,
    exact_code,
    held_bytes_packed,
    pack_tensor,
    pack_values,
    packed_bytes,
    take_rows,
)
from strata.native import library
from strata.native.pool import Pool
from strata.quant.layout import Code
from strata.quant.packer import Packer
from strata.weights.gguf import open_gguf
from strata.weights.header import read_header
from strata.weights.opening import ModelSource, open_model
from strata.weights.source import MemorySource
from tests.packed_buffers import to_buffer
from tests.weights import gguf_models

needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
OUT = "model.layers.0.linear_attn.out_proj.weight"


def sources() -> dict[str, ModelSource]:
    return {
        "fp8": open_model(Path(models_shipped.default_path())),
        "bf16": open_model(gguf_models.directory("qwen3_next")),
        "code4": open_model(gguf_models.directory("qwen3_next"), "code4"),
        "Q4_0": open_model(gguf_models.gguf("qwen3_5_moe", "Q4_0")),
        "Q8_0": open_model(gguf_models.gguf("qwen4_exp", "Q8_0")),
    }


def matrices_of(source: ModelSource) -> list[str]:
    return [name for name in source.names() if len(source.shape(name)) == 2 and min(source.shape(name)) > 1]


@pytest.mark.parametrize("kind", ["fp8", "bf16", "code4", "Q4_0", "Q8_0"])
def test_packed_matrices_have_the_values_of_their_tensors_and_the_size_that_was_told(kind: str) -> None:
    source = sources()[kind]
    for name in matrices_of(source):
        packed = pack_tensor(source, name)
        values = torch.cat([part.decode() for part in packed.parts])
        if packed.order is not None:
            values = torch.empty_like(values).index_copy_(1, packed.order.long(), values)
        assert torch.equal(values, source.tensor(name, torch.float32)), name
        held = sum(part.layout.total_bytes for part in packed.parts)
        filled_up = 15 * held // source.shape(name)[0] + 320  # the last tile's missing rows, and alignment
        assert packed_bytes(source, name) <= held <= packed_bytes(source, name) + filled_up, name


def test_a_matrix_whose_blocks_cannot_be_moved_stays_in_its_code_with_an_order_of_columns() -> None:
    source = open_model(gguf_models.gguf("qwen3_5_moe", "Q8_0"))
    packed = pack_tensor(source, OUT)
    assert packed.order is not None
    assert [part.layout.code for part in packed.parts] == [Code.CODE8]
    x = torch.randn(5, packed.parts[0].layout.columns, dtype=torch.float64)
    found = x[:, packed.order.long()] @ packed.parts[0].decode().double().t()
    assert torch.allclose(found, x @ source.tensor(OUT, torch.float64).t(), atol=1e-10)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0", "BF16", "MXFP4"])
def test_packing_in_chunks_is_packing_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(gguf_models.gguf("qwen3_moe", kind))
    for name in matrices_of(source):
        whole = pack_tensor(source, name).parts
        monkeypatch.setattr(packing, "_CHUNK_WEIGHTS", 1)  # one tile at a time
        for once, chunked in zip(whole, pack_tensor(source, name).parts, strict=True):
            assert torch.equal(to_buffer(once), to_buffer(chunked))
            assert once.layout == chunked.layout
        monkeypatch.undo()


@pytest.mark.parametrize("kind", ["fp8", "bf16", "Q4_0"])
def test_rows_in_another_order_keep_their_code_and_values(kind: str) -> None:
    source = sources()[kind]
    name = next(name for name in matrices_of(source) if "linear_attn.in_proj_qkv" in name)
    parts = pack_tensor(source, name).parts
    rows = torch.randperm(source.shape(name)[0])[:21]
    taken = take_rows(parts, rows)
    assert taken.layout == replace(parts[0].layout, rows=21)
    assert torch.equal(taken.decode(), source.tensor(name, torch.float32)[rows])


def test_rows_of_parts_in_several_codes_are_taken_by_value() -> None:
    values = torch.randn(5, 32)
    parts = [pack_values(values), pack_values(values.bfloat16().float())]
    rows = torch.tensor([7, 0, 4])
    assert torch.equal(take_rows(parts, rows).decode(), torch.cat([part.decode() for part in parts])[rows])


@pytest.mark.parametrize("is_native", [False, pytest.param(True, marks=needs_library)])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "BF16", "fp8"])
def test_a_broken_matrix_is_told_with_its_file_and_name(kind: str, is_native: bool, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    if kind == "fp8":
        model = tmp_path / "model"
        synth("qwen3_moe", model, fields=["vocab_size=512"], dtype="fp8")
        file = model / "model.safetensors"
        begin = read_header(file)[name].begin
    else:
        model = file = tmp_path / "model.gguf"
        file.write_bytes(gguf_models.gguf("qwen3_moe", kind).read_bytes())
        begin = open_gguf(file).tensors["blk.0.attn_output.weight"].begin
    pack_tensor(open_model(model), name)
    content = bytearray(file.read_bytes())
    content[begin : begin + 2] = b"\xff\x7f"  # not a number as float16, bfloat16 and float8_e4m3fn
    file.write_bytes(content)
    packer = Packer(Pool(1)) if is_native else None
    with pytest.raises(WeightFileError, match=rf"^{model}: {name}: an? .*is not finite$"):
        pack_tensor(open_model(model), name, packer)


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


def test_a_whole_model_is_counted_in_its_codes() -> None:
    source = open_model(gguf_models.gguf("qwen3_moe", "Q4_0"))
    family = family_of(source.config)
    shapes = family.expected_tensors(family.parse_config(source.config))
    sizes = held_bytes_packed(source, shapes)
    stored = sum(source.stored_bytes(name) for name in shapes)
    assert sizes.keys() == shapes.keys()
    assert stored <= sum(sizes.values()) <= 1.1 * stored
