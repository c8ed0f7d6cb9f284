"""A source gives canonical tensors whatever way they were published in, and refuses values that are not finite.

Rows of tables (`strata.weights.rows`) are the same values as in the whole tensor.
"""

from pathlib import Path

import pytest
import torch

from strata.errors import WeightFileError
from strata.weights import reading
from strata.weights.fp8 import decode_blocks, encode_blocks
from strata.weights.safetensors import open_model
from strata.weights.source import MemorySource
from tests.weights.model_files import fp8_config, single, write_model

E, F, D = 3, 4, 6
EXPERTS = "model.layers.0.mlp.experts"
TABLE = "model.layers.1.ple.ple_embedding.ngram_embedding"


def canonical() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        f"{EXPERTS}.gate_up_proj": torch.randn(E, 2 * F, D).bfloat16(),
        f"{EXPERTS}.down_proj": torch.randn(E, D, F).bfloat16(),
        f"{TABLE}.weight": torch.randn(23, 5).bfloat16(),
        "model.embed_tokens.weight": torch.randn(9, D).bfloat16(),
        "mtp.norm.weight": torch.randn(D),
        "scalar": torch.tensor(3.5).half(),
        "ids": torch.arange(4),
    }


def published(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with separate experts, shards and the longer prefix."""
    out: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("gate_up_proj"):
            for expert in range(E):
                out[f"{EXPERTS}.{expert}.gate_proj.weight"] = tensor[expert, :F]
                out[f"{EXPERTS}.{expert}.up_proj.weight"] = tensor[expert, F:]
        elif name.endswith("down_proj"):
            out |= {f"{EXPERTS}.{expert}.down_proj.weight": tensor[expert] for expert in range(E)}
        elif name.startswith(TABLE):
            out |= {f"{TABLE}.shard_{i}.weight": part for i, part in enumerate(tensor.split((8, 1, 14)))}
        else:
            out[name] = tensor
    out["model.visual.blocks.0.weight"] = torch.ones(2, 2)
    return {name.replace("model.layers", "model.language_model.layers"): tensor for name, tensor in out.items()}


def in_two_shards(directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    names = sorted(tensors)
    return write_model(
        directory,
        {
            f"model-0000{number}-of-00002.safetensors": {name: tensors[name] for name in names[number - 1 :: 2]}
            for number in (1, 2)
        },
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_layout_gives_the_same_tensors(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = canonical()
    expected = MemorySource(tensors)
    for source in (
        open_model(single(tmp_path / "packed", tensors)),
        open_model(in_two_shards(tmp_path / "separate", published(tensors))),
    ):
        assert set(source.names()) == set(tensors)
        for name in tensors:
            assert source.shape(name) == expected.shape(name)
            found = source.tensor(name, dtype)
            assert found.dtype == expected.tensor(name, dtype).dtype
            assert torch.equal(found, expected.tensor(name, dtype))
        rows = torch.tensor([22, 0, 8, 7, 8, 9, 21])
        assert torch.equal(source.rows(f"{TABLE}.weight", rows, dtype), expected.rows(f"{TABLE}.weight", rows, dtype))


def test_vision_tensors_are_one_line(tmp_path: Path) -> None:
    assert len(open_model(single(tmp_path / "a", published(canonical()))).notices) == 1
    assert open_model(single(tmp_path / "b", canonical())).notices == ()


@pytest.mark.parametrize("block", [(4, 4), (3, 5), (128, 128), (1, 2)])
@pytest.mark.parametrize("layout", ["packed", "separate"])
def test_fp8_decodes_in_every_layout(tmp_path: Path, block: tuple[int, int], layout: str) -> None:
    weights = {name: tensor.float() for name, tensor in canonical().items() if tensor.dim() > 1}
    stored = published(weights) if layout == "separate" else weights
    files, expected = {}, {}
    for name, tensor in stored.items():
        files[name], files[f"{name}_scale_inv"] = encode_blocks(tensor, block)
        expected[name] = decode_blocks(files[name], files[f"{name}_scale_inv"], block)
    source = open_model(single(tmp_path, files, fp8_config(*block)))
    for name in weights:
        if layout == "packed":
            assert torch.equal(source.tensor(name, torch.float32), expected[name])
        assert torch.allclose(source.tensor(name, torch.float32), weights[name], atol=0.15)
    table = source.tensor(f"{TABLE}.weight", torch.float32)
    rows = torch.tensor([22, 0, 8, 7, 8, 9])
    assert torch.equal(source.rows(f"{TABLE}.weight", rows, torch.float32), table[rows])
    assert source.stored_code(f"{EXPERTS}.down_proj") == "F8_E4M3"


def test_reading_in_small_chunks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coded, scale = encode_blocks(torch.randn(7, 6), (2, 4))
    tensors = {"plain": torch.randn(5, 7), "coded": coded, "coded_scale_inv": scale}
    source = open_model(single(tmp_path, tensors, fp8_config(2, 4)))
    whole = {name: source.tensor(name, torch.float64) for name in source.names()}
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 13)
    for name, expected in whole.items():
        assert torch.equal(source.tensor(name, torch.float64), expected)
    assert torch.equal(source.tensor("plain", torch.float32), tensors["plain"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused_by_name(tmp_path: Path, value: float) -> None:
    tensors = canonical()
    tensors[f"{EXPERTS}.down_proj"][1, 2, 3] = value
    tensors[f"{TABLE}.weight"][20, 4] = value
    source = open_model(single(tmp_path, published(tensors)))
    with pytest.raises(WeightFileError, match=r"model.safetensors: tensor .*experts.1.down_proj.weight .*\[2, 3\]"):
        source.tensor(f"{EXPERTS}.down_proj", torch.float32)
    with pytest.raises(WeightFileError, match="shard_2"):
        source.rows(f"{TABLE}.weight", torch.tensor([1, 20]), torch.bfloat16)
    assert source.rows(f"{TABLE}.weight", torch.tensor([1, 19]), torch.bfloat16).shape == (2, 5)


def test_not_a_number_among_fp8_weights_or_scales_is_refused(tmp_path: Path) -> None:
    coded, scale = encode_blocks(torch.randn(4, 4), (2, 2))
    broken = coded.view(torch.uint8).clone()
    broken[3, 1] = 0x7F
    for number, files in enumerate(
        (
            {"w": broken.view(coded.dtype), "w_scale_inv": scale},
            {"w": coded, "w_scale_inv": scale.fill_(float("inf"))},
        )
    ):
        source = open_model(single(tmp_path / str(number), files, fp8_config(2, 2)))
        with pytest.raises(WeightFileError, match="not finite"):
            source.tensor("w", torch.float32)


def test_a_number_too_large_for_the_asked_type_is_refused(tmp_path: Path) -> None:
    source = open_model(single(tmp_path, {"a": torch.tensor([1.0, 1e9])}))
    with pytest.raises(WeightFileError, match="read as float16"):
        source.tensor("a", torch.float16)


def test_progress_counts_every_stored_byte_once(tmp_path: Path) -> None:
    coded, scale = encode_blocks(torch.randn(7, 6), (2, 4))
    files = published(canonical()) | {"coded": coded, "coded_scale_inv": scale}
    source = open_model(single(tmp_path, files, fp8_config(2, 4)))
    seen: list[tuple[int, int, str]] = []
    source.report_progress(source.names(), lambda done, total, name: seen.append((done, total, name)))
    for name in source.names():
        source.tensor(name, torch.float32)
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert seen[-1][:2] == (sum(source.stored_bytes(name) for name in source.names()),) * 2


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    source = open_model(single(tmp_path, canonical()))
    for ask in (
        lambda: source.shape("no.such"),
        lambda: source.tensor("no.such", torch.float32),
        lambda: source.rows("no.such", torch.tensor([0]), torch.float32),
    ):
        with pytest.raises(WeightFileError, match=r"tensor no\.such is missing"):
            ask()
    for rows in ([-1], [23]):
        with pytest.raises(WeightFileError, match="it has 23"):
            source.rows(f"{TABLE}.weight", torch.tensor(rows), torch.float32)
    with pytest.raises(WeightFileError, match="only a matrix"):
        source.rows("mtp.norm.weight", torch.tensor([0]), torch.float32)


def test_rows_come_in_the_order_they_were_asked_for(tmp_path: Path) -> None:
    source, table = open_model(single(tmp_path, published(canonical()))), canonical()[f"{TABLE}.weight"]
    for ids in ([], [3], [22, 0, 22, 7, 8, 9, 8, 0], list(range(23))):
        rows = torch.tensor(ids, dtype=torch.int64)
        assert torch.equal(source.rows(f"{TABLE}.weight", rows, torch.bfloat16), table[rows])
        source.close()  # files are opened again when they are needed
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(WeightFileError, match=r"ended while tensor .*shard_0\.weight was read"):
        source.rows(f"{TABLE}.weight", torch.tensor([0]), torch.bfloat16)
    (tmp_path / "model.safetensors").unlink()
    source.close()
    with pytest.raises(WeightFileError, match="no such file"):
        source.rows(f"{TABLE}.weight", torch.tensor([0]), torch.bfloat16)


def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    source = open_model(single(tmp_path, {"a": torch.ones(100)}))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(WeightFileError, match="ended while tensor a was read"):
        source.tensor("a", torch.float32)
    file.unlink()
    with pytest.raises(WeightFileError, match="no such file"):
        source.tensor("a", torch.float32)
