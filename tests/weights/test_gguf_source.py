"""A GGUF file gives the tensors, the config and the logits of the directory it was made from; its raw bytes too."""

from pathlib import Path

import numpy as np
import pytest
import torch

from strata.errors import ConfigError, WeightFileError
from strata.quant.formats import by_name
from strata.weights.gguf import open_gguf
from strata.weights.gguf_config import read_config
from strata.weights.gguf_names import ARCHITECTURES, Change, Heads, Order, find_rules, row_index, rules_of
from strata.weights.gguf_source import GgufSource, RawMatrix, open_gguf_model
from strata.weights.gguf_types import TYPE_OF_NAME
from strata.weights.gguf_writer import OutTensor, Pair, write_gguf
from strata.weights.safetensors import open_model
from tests.weights import gguf_models
from tests.weights.gguf_files import out_tensor, write


def decoded(matrices: tuple[RawMatrix, ...]) -> torch.Tensor:
    parts = [
        torch.from_numpy(by_name(each.type.name).dequantize(each.data)).reshape(-1, each.columns) for each in matrices
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("kind", ["F32", "BF16"])
@pytest.mark.parametrize("family", gguf_models.FAMILIES)
def test_logits_are_those_of_the_directory_bit_for_bit(family: str, kind: str) -> None:
    published = open_model(gguf_models.directory(family))
    converted = open_gguf_model(gguf_models.gguf(family, kind))
    assert torch.equal(gguf_models.logits(published), gguf_models.logits(converted))


@pytest.mark.parametrize("family", gguf_models.FAMILIES)
def test_tensors_and_config_are_those_of_the_directory(family: str) -> None:
    published = open_model(gguf_models.directory(family))
    converted = open_gguf_model(gguf_models.gguf(family, "F32"))
    missing = [name for name in published.names() if name not in converted.names() and not name.startswith("mtp.")]
    assert missing == []
    assert converted.notices == ()
    for name in converted.names():
        ours, theirs = converted.tensor(name, torch.float32), published.tensor(name, torch.float32)
        assert converted.shape(name) == published.shape(name)
        if name.endswith("A_log"):  # files hold -exp of it: what is computed with comes back
            ours, theirs = ours.exp(), theirs.exp()
        elif "norm" in name:
            ours, theirs = ours + 1.0, theirs + 1.0
        assert torch.equal(ours, theirs), name
    left, right = (gguf_models.load(source)[0] for source in (published, converted))
    for field in ("attention", "delta_net", "rotary", "eps", "vocabulary_size", "max_position", "ties_embeddings"):
        assert getattr(left, field) == getattr(right, field), field


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
@pytest.mark.parametrize("family", gguf_models.FAMILIES)
def test_raw_bytes_decode_to_the_tensor(family: str, kind: str) -> None:
    source = open_gguf_model(gguf_models.gguf(family, kind))
    seen = 0
    for name in source.names():
        values = source.tensor(name, torch.float32)
        if values.dim() == 3 and ".experts." in name:
            for expert in (0, source.shape(name)[0] - 1):
                assert torch.equal(decoded(source.raw_expert(name, expert)), values[expert]), name
        elif values.dim() == 2 and "hash" not in name:
            matrices = source.raw(name)
            if matrices is not None:
                seen += 1
                assert torch.equal(decoded(matrices), values), name
    assert seen > 10


def test_experts_are_views_of_the_file_and_moved_columns_need_whole_blocks() -> None:
    source = open_gguf_model(gguf_models.gguf("qwen3_5_moe", "Q8_0"))
    for matrix in source.raw_expert("model.layers.0.mlp.experts.gate_up_proj", 1):
        assert not matrix.data.flags.owndata
        assert matrix.type.name == "Q8_0"
    # Value heads of 16 columns are no whole blocks of 32.
    assert source.raw("model.layers.0.linear_attn.out_proj.weight") is None
    assert not source.notices  # they stay in the file's order, and their inputs are put into it
    in_file_order = source.raw_in_file_order("model.layers.0.linear_attn.out_proj.weight")
    assert in_file_order is not None
    matrix, order = in_file_order
    x = torch.randn(matrix.columns, dtype=torch.float64)
    product = decoded((matrix,)).double() @ x[torch.from_numpy(order)]
    expected = source.tensor("model.layers.0.linear_attn.out_proj.weight", torch.float32).double() @ x
    assert torch.allclose(product, expected, atol=1e-12)
    assert source.raw_in_file_order("model.layers.0.linear_attn.in_proj_z.weight") is None
    plain = open_gguf_model(gguf_models.gguf("qwen3_5_moe", "BF16"))
    moved = plain.raw("model.layers.0.linear_attn.out_proj.weight")
    assert moved is not None
    assert torch.equal(decoded(moved), plain.tensor("model.layers.0.linear_attn.out_proj.weight", torch.float32))
    assert plain.raw("model.norm.weight") is None
    with pytest.raises(WeightFileError, match="has no expert 99"):
        source.raw_expert("model.layers.0.mlp.experts.down_proj", 99)


def test_rows_of_the_ngram_table_are_read_alone() -> None:
    source = open_gguf_model(gguf_models.gguf("qwen4_exp", "Q4_0"))
    name = next(name for name in source.names() if name.endswith("ngram_embedding.weight"))
    ids = torch.tensor([5, 0, 5, source.shape(name)[0] - 1])
    assert torch.equal(source.rows(name, ids, torch.float32), source.tensor(name, torch.float32)[ids])
    with pytest.raises(WeightFileError, match="were asked for; it has"):
        source.rows(name, torch.tensor([source.shape(name)[0]]), torch.float32)


def test_progress_counts_the_stored_bytes() -> None:
    source = open_gguf_model(gguf_models.gguf("qwen3_moe", "Q8_0"))
    seen: list[tuple[int, int]] = []
    names = list(source.names())[:8]
    source.report_progress(names, lambda done, total, _: seen.append((done, total)))
    for name in names:
        source.tensor(name, torch.bfloat16)
    assert seen[-1][0] == seen[-1][1] == sum(source.stored_bytes(name) for name in names)


def rewritten(path: Path, target: Path, change: dict[str, object] | None = None, **tensors: object) -> GgufSource:
    """The tiny qwen4_exp file with some metadata or tensors changed; None leaves one out."""
    model = open_gguf(path)
    kinds = {bool: "bool", int: "u32", float: "f32", str: "text"}
    pairs = []
    for key, value in {**model.metadata, **(change or {})}.items():
        if value is None:
            continue
        if isinstance(value, list):
            kind = "[text]" if isinstance(value[0], str) else "[bool]" if isinstance(value[0], bool) else "[i64]"
            pairs.append(Pair(key, kind, value))
        else:
            pairs.append(Pair(key, kinds[type(value)], value))
    out = []
    for name, tensor in model.tensors.items():
        if tensors.get(name, 0) is not None:
            data = model.rows_of(tensor)
            out.append(OutTensor(name, tensor.type, tensor.shape, lambda data=data: iter([data])))
    write_gguf(target, pairs, out, lambda *_: None)
    return open_gguf_model(target)


CHANGES = {
    "no ratios": ({"qwen4exp.attention.compress_ratios": None}, ConfigError, "no ratio above 0; .* dense attention"),
    "two ratios": ({"qwen4exp.attention.compress_ratios": [0, 2, 0, 4]}, ConfigError, "different ratios"),
    "no layers": ({"qwen4exp.block_count": 1 << 31}, ConfigError, "block_count means 2,147,483,648 layers"),
    "no such key": ({"qwen4exp.embedding_length": None}, ConfigError, "no metadata key qwen4exp.embedding_length"),
    "hash": ({"qwen4exp.ple.layer_multipliers": [3, 5, 7]}, ConfigError, "the hash of its n-grams"),
    "hash parts": ({"qwen4exp.ple.heads_per_ngram": 1 << 31}, ConfigError, "parts that fit the table"),
    "two tables": ({"qwen4exp.ple.layers": [0, 1]}, ConfigError, "one n-gram layer is supported"),
    "rope scaling": ({"qwen4exp.rope.scaling.type": "yarn", "qwen4exp.rope.scaling.factor": 4.0}, ConfigError, "yarn"),
    "heads": ({"qwen4exp.ssm.group_count": 3}, WeightFileError, "rows do not fit the heads"),
    "value size": ({"qwen4exp.attention.value_length": 7}, ConfigError, "value_length differs"),
    "architecture": ({"general.architecture": "mamba"}, ConfigError, "'mamba' is not supported; supported: qwen4exp"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_metadata_that_contradicts_the_model_is_named(tmp_path: Path, case: str) -> None:
    change, kind, words = CHANGES[case]
    with pytest.raises(kind, match=words) as caught:
        rewritten(gguf_models.gguf("qwen4_exp", "Q8_0"), tmp_path / "m.gguf", change)
    assert "\n" not in str(caught.value)


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    source = rewritten(gguf_models.gguf("qwen4_exp", "Q8_0"), tmp_path / "m.gguf", **{"blk.3.attn_q.weight": None})
    with pytest.raises(WeightFileError, match=r"model\.layers\.3\.self_attn\.q_proj\.weight is missing"):
        gguf_models.load(source)


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = bytearray(gguf_models.gguf("qwen3_moe", "Q8_0").read_bytes())
    tensor = open_gguf(gguf_models.gguf("qwen3_moe", "Q8_0")).tensors["blk.0.attn_q.weight"]
    data[tensor.begin : tensor.begin + 2] = b"\xff\x7f"
    path.write_bytes(data)
    with pytest.raises(WeightFileError, match=r"blk\.0\.attn_q\.weight.*not finite"):
        open_gguf_model(path).tensor("model.layers.0.self_attn.q_proj.weight", torch.float32)


def test_a_scale_beside_a_tensor_multiplies_it(tmp_path: Path) -> None:
    published = gguf_models.gguf("qwen3_moe", "F32")
    model = open_gguf(published)
    name = "blk.0.ffn_down_exps.weight"
    experts = torch.from_numpy(model.rows_of(model.tensors[name]).view(np.float32).copy())
    kept = [
        OutTensor(tensor.name, tensor.type, tensor.shape, lambda tensor=tensor: iter([model.rows_of(tensor)]))
        for tensor in model.tensors.values()
    ]
    scales = torch.arange(1.0, 1.0 + len(experts))
    pairs = [Pair(key, {int: "u32", float: "f32", str: "text"}[type(value)], value) for key, value in
             model.metadata.items() if not isinstance(value, list | bool)]  # fmt: skip
    write_gguf(tmp_path / "m.gguf", pairs, [*kept, out_tensor("blk.0.ffn_down_exps.scale", scales)], lambda *_: None)
    source = open_gguf_model(tmp_path / "m.gguf")
    found = source.tensor("model.layers.0.mlp.experts.down_proj", torch.float32)
    assert torch.equal(found, experts * scales[:, None, None])
    assert source.raw_expert("model.layers.0.mlp.experts.down_proj", 2)[0].post_scale == 3.0
    assert source.notices == ()


def test_tensors_that_nobody_reads_are_refused_unless_they_are_a_draft_layer(tmp_path: Path) -> None:
    path = gguf_models.gguf("qwen3_moe", "F32")
    model = open_gguf(path)
    pairs = [Pair(key, {int: "u32", float: "f32", str: "text"}[type(value)], value) for key, value in
             model.metadata.items() if not isinstance(value, list | bool)]  # fmt: skip
    kept = [
        OutTensor(tensor.name, tensor.type, tensor.shape, lambda tensor=tensor: iter([model.rows_of(tensor)]))
        for tensor in model.tensors.values()
    ]
    for index, (name, is_draft) in enumerate(
        {"blk.4.attn_q.bias": True, "blk.0.attn_q.bias": False, "x": False}.items()
    ):
        target = tmp_path / f"{index}.gguf"
        write_gguf(target, pairs, [*kept, out_tensor(name, torch.ones(32))], lambda *_: None)
        if is_draft:
            assert open_gguf_model(target).notices == (
                "1 tensor of the file is not read, for example blk.4.attn_q.bias",
            )
        else:
            with pytest.raises(WeightFileError, match=f"{name}' is not known .* could change"):
                open_gguf_model(target)


def test_fused_experts_are_read_as_they_are() -> None:
    rules = {rule.canonical: rule for rule in rules_of(ARCHITECTURES[0], 1, None)}
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert rules[name].parts == ("blk.0.ffn_gate_up_exps.weight",)
    found = find_rules(rules_of(ARCHITECTURES[0], 1, None), {"blk.0.ffn_gate_up_exps.weight": None})
    assert found[name].change is Change.NONE


def test_value_heads_change_places_and_come_back() -> None:
    heads = Heads(key_heads=2, value_heads=6, key_dim=1, value_dim=2)
    # Canonical: the value heads of key head 0, then those of 1; files: the first of each, the second of each, ...
    index = row_index(Order.VALUE_HEADS, heads, 6)
    assert index is not None
    assert index.tolist() == [0, 2, 4, 1, 3, 5]
    behind = row_index(Order.BEHIND_KEYS, heads, 16)
    assert behind is not None
    assert behind.tolist()[:6] == [0, 1, 2, 3, 4, 5]
    assert sorted(behind) == list(range(16))
    with pytest.raises(ValueError, match="do not fit"):
        row_index(Order.VALUE_ROWS, heads, 13)


def test_files_without_experts_or_embedding_are_refused(tmp_path: Path) -> None:
    pairs = [Pair("general.architecture", "text", "qwen3moe"), Pair("qwen3moe.block_count", "u32", 1)]
    model = open_gguf(write(tmp_path / "m.gguf", pairs, {"a": torch.ones(4, 32)}))
    with pytest.raises(WeightFileError, match=r"no tensor token_embd\.weight"):
        read_config(model, [])
    assert TYPE_OF_NAME["Q4_K"].row_bytes(512) == 288
