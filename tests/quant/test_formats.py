"""Every published format: its values are those of the gguf package, and packing keeps them bit for bit."""

from importlib import import_module

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import WeightFileError
from strata.quant import formats
from strata.quant.formats import base, grids
from strata.quant.formats.fp8_block import fp8_layout, pack_fp8_blocks
from strata.quant.layout import Code, ScaleKind
from tests.quant.blocks import mild_blocks, random_blocks

MODULES = [
    import_module(name)
    for name in (
        "strata.quant.formats.floats",
        "strata.quant.formats.fp4",
        "strata.quant.formats.iq2",
        "strata.quant.formats.iq3",
        "strata.quant.formats.iq4",
        "strata.quant.formats.q2_0",
        "strata.quant.formats.q2_k",
        "strata.quant.formats.q3_k",
        "strata.quant.formats.q4_0",
        "strata.quant.formats.q4_1",
        "strata.quant.formats.q4_k",
        "strata.quant.formats.q5",
        "strata.quant.formats.q6_k",
        "strata.quant.formats.q8_0",
    )
]
KNOWN_TO_GGUF = [kept for kept in formats.ALL if kept.name != "Q2_0"]  # newer than the package
every_format = pytest.mark.parametrize("kept", formats.ALL, ids=lambda kept: kept.name)


def published(kept: formats.Format, blocks: np.ndarray) -> np.ndarray:
    if kept.name == "Q2_0":  # (code - 1) * d, four codes a byte from the low bits
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        codes = np.stack([(blocks[:, 2:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(-1, 64)
        return (codes.astype(np.float32) - 1) * scale
    kind = gguf.GGMLQuantizationType[kept.name]
    carrier = {"F32": np.float32, "F16": np.float16}.get(kept.name)
    with np.errstate(all="ignore"):
        return gguf.dequantize(blocks.view(carrier) if carrier else blocks, kind)


def same_values(found: np.ndarray, wanted: np.ndarray) -> bool:
    finite = np.isfinite(wanted)
    return finite.any() and np.array_equal(found.reshape(-1)[finite.reshape(-1)], wanted[finite])


def test_registry_holds_what_the_modules_offer() -> None:
    offered = [value for module in MODULES for value in vars(module).values() if isinstance(value, base.Format)]
    assert {kept.name for kept in offered} == {kept.name for kept in formats.ALL}
    assert formats.by_gguf_type(2) is formats.by_name("Q4_0")
    with pytest.raises(WeightFileError, match="type 99"):
        formats.by_gguf_type(99)
    with pytest.raises(WeightFileError, match="Q9_Z"):
        formats.by_name("Q9_Z")


@pytest.mark.parametrize("kept", KNOWN_TO_GGUF, ids=lambda kept: kept.name)
def test_numbers_are_those_of_gguf(kept: formats.Format) -> None:
    kind = gguf.GGMLQuantizationType[kept.name]
    assert kind.value == kept.gguf_type
    assert gguf.GGML_QUANT_SIZES[kind] == (kept.block_weights, kept.block_bytes)


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_grids_are_those_of_gguf(name: str) -> None:
    theirs = getattr(gguf.quants, name)
    theirs.init_grid()
    levels = np.array(theirs.grid_map, np.float32)[getattr(grids, name)]
    assert np.array_equal(levels, theirs.grid.reshape(theirs.grid_shape))
    assert grids.EVEN_SIGNS.tobytes() == gguf.quants.IQ2_XXS.ksigns


@every_format
@pytest.mark.parametrize("make", [mild_blocks, random_blocks])
def test_values_are_the_published_ones_and_packing_keeps_them(kept: formats.Format, make) -> None:  # type: ignore[no-untyped-def]
    rows, columns = 37, 768  # a last tile of 5 rows
    blocks = make(kept, rows * columns // kept.block_weights, seed=1)
    wanted = published(kept, blocks)
    assert same_values(kept.dequantize(blocks), wanted)
    packed = kept.to_packed(blocks, rows, columns)
    assert packed.decode().shape == (rows, columns)
    assert same_values(packed.decode().numpy(), wanted)
    assert packed.layout == kept.layout(rows, columns) or kept.name == "MXFP4"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(formats.ALL), st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**31))
def test_any_size_is_kept(kept: formats.Format, rows: int, groups: int, seed: int) -> None:
    columns = groups * (256 if kept.block_weights == 256 else 64)
    blocks = random_blocks(kept, rows * columns // kept.block_weights, seed)
    packed = kept.to_packed(blocks.tobytes(), rows, columns)
    assert same_values(packed.decode().numpy(), kept.dequantize(blocks).reshape(rows, -1))


def test_every_code_of_a_table_comes_back() -> None:
    for name in ("Q4_0", "IQ4_NL", "MXFP4"):
        kept = formats.by_name(name)
        block = mild_blocks(kept, 1)
        block[0, -16:] = np.arange(16) | (np.arange(15, -1, -1) << 4)
        assert np.array_equal(kept.to_packed(block, 1, 32).decode().numpy(), published(kept, block))


@pytest.mark.parametrize("factor", [1.0, 2.0, 0.3])
def test_a_factor_that_is_published_beside_a_matrix_is_in_every_value(factor: float) -> None:
    kept = formats.by_name("NVFP4")
    blocks = mild_blocks(kept, 16)
    exact = kept.dequantize(blocks).reshape(16, 64) * np.float32(factor)
    assert np.array_equal(kept.to_packed(blocks, 16, 64, factor).decode().numpy(), exact)


@pytest.mark.parametrize("kept", [kept for kept in formats.ALL if kept.half_scales], ids=lambda kept: kept.name)
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00])
def test_scales_that_are_not_finite_are_refused(kept: formats.Format, bits: int) -> None:
    for offset in kept.half_scales:
        blocks = mild_blocks(kept, 8)
        blocks[5, offset : offset + 2] = np.array([bits], np.uint16).view(np.uint8)
        with pytest.raises(WeightFileError, match="not finite"):
            kept.to_packed(blocks, 1, 8 * kept.block_weights)


@pytest.mark.parametrize(("name", "byte"), [("MXFP4", 255), ("NVFP4", 255)])
def test_scales_that_are_no_numbers_are_refused(name: str, byte: int) -> None:
    kept = formats.by_name(name)
    blocks = mild_blocks(kept, 4)
    blocks[2, 0] = byte
    with pytest.raises(WeightFileError, match="not a number"):
        kept.to_packed(blocks, 4, kept.block_weights)
    with pytest.raises(WeightFileError, match="tensor is not finite"):
        kept.to_packed(mild_blocks(kept, 1), 1, kept.block_weights, post_scale=float("inf"))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_weights_that_are_not_finite_are_refused(name: str) -> None:
    kept = formats.by_name(name)
    values = {"F32": np.float32, "F16": np.float16}.get(name)
    raw = np.array([1, np.inf], values) if values else np.array([0x3F80, 0x7F80], np.uint16)
    with pytest.raises(WeightFileError, match="not finite"):
        kept.to_packed(raw, 1, 2)


def test_a_wrong_size_is_refused_with_both_numbers() -> None:
    kept = formats.by_name("Q4_K")
    with pytest.raises(WeightFileError, match="takes 144 bytes; the file has 143"):
        kept.to_packed(bytes(143), 1, 256)
    with pytest.raises(WeightFileError, match="256"):
        kept.to_packed(bytes(144), 1, 128)


def test_mxfp4_halves_the_smallest_exponents_exactly() -> None:
    kept = formats.by_name("MXFP4")
    blocks = np.full((2, 17), 0x5A, np.uint8)
    for low, high, kind, post in ((1, 3, "E8M0", 1.0), (0, 3, "E8M0", 0.5), (0, 253, "F32", 1.0)):
        blocks[:, 0] = low, high
        packed = kept.to_packed(blocks, 2, 32)
        assert (packed.layout.scale_kind, packed.post_scale) == (ScaleKind[kind], post)
        assert same_values(packed.decode().numpy(), published(kept, blocks))
    blocks[0] = 0  # a block of zeros: its exponent says nothing
    assert kept.to_packed(blocks, 2, 32).layout.scale_kind is ScaleKind.E8M0


def test_nvfp4_is_what_torch_makes_of_its_parts() -> None:
    kept = formats.by_name("NVFP4")
    blocks = random_blocks(kept, 64, seed=5)
    blocks[:, :4] &= 0x7F
    blocks[:, :4][blocks[:, :4] == 0x7F] = 0x7E
    scales = torch.from_numpy(blocks[:, :4].copy()).view(torch.float8_e4m3fn).float()
    four_bit = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.from_numpy(blocks[:, 4:].copy()).reshape(64, 4, 8)
    ordered = torch.cat((codes & 15, codes >> 4), dim=2).long()
    values = four_bit[ordered & 7] * torch.where(ordered > 7, -1.0, 1.0)
    wanted = (values * scales[..., None]).reshape(64, 64)
    assert torch.equal(kept.to_packed(blocks, 64, 64).decode(), wanted)


@pytest.mark.parametrize(("rows", "columns", "block"), [(37, 200, (16, 128)), (16, 256, (128, 128)), (3, 5, (2, 2))])
def test_fp8_blocks_are_what_torch_multiplies(rows: int, columns: int, block: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, columns, generator=generator).mul(100).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // block[0]), -(-columns // block[1]), generator=generator) * 1e-3
    packed = pack_fp8_blocks(weight, scale, block)
    wide = scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    assert torch.equal(packed.decode(), weight.float() * wide)
    assert packed.layout == fp8_layout(rows, columns, block[1])
    assert packed.layout.code is Code.FP8
    with pytest.raises(WeightFileError, match="not finite"):
        pack_fp8_blocks(weight, scale * float("nan"), block)
    with pytest.raises(WeightFileError, match="shape"):
        pack_fp8_blocks(weight, scale[:, :1].repeat(1, 9), block)
