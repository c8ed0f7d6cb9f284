"""Quantizers: not much worse than those of the gguf package, and at ease with zeros, one value and huge ones."""

import gguf
import numpy as np
import pytest

from strata.quant import formats
from strata.quant.formats import fitting

WRITTEN = [kept for kept in formats.ALL if kept.quantize_blocks is not None]
WITH_PEER = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "BF16")
WORST_AGAINST_PEER = 1.15
# Relative error of normal values: what a format of this size should reach.
WORST_ERROR = {
    "Q2_0": 0.37, "Q4_0": 0.085, "Q4_1": 0.077, "Q5_0": 0.042, "Q5_1": 0.038, "Q8_0": 0.0055, "IQ4_NL": 0.078,
    "Q4_K": 0.078, "Q5_K": 0.039, "Q6_K": 0.018, "MXFP4": 0.115, "NVFP4": 0.093, "F32": 0, "F16": 3e-4, "BF16": 2e-3,
}  # fmt: skip


def weights(shape: tuple[int, int] = (32, 1024)) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 0.02).astype(np.float32)


def relative_error(kept: formats.Format, values: np.ndarray, raw: np.ndarray) -> float:
    return float(np.linalg.norm(kept.dequantize(raw) - values.reshape(-1)) / np.linalg.norm(values))


@pytest.mark.parametrize("kept", WRITTEN, ids=lambda kept: kept.name)
def test_error_is_what_the_size_promises(kept: formats.Format) -> None:
    values = weights()
    raw = kept.quantize(values)
    assert raw.size == values.size // kept.block_weights * kept.block_bytes
    assert relative_error(kept, values, raw) <= WORST_ERROR[kept.name]


@pytest.mark.parametrize("name", WITH_PEER)
def test_error_is_near_that_of_the_peer(name: str) -> None:
    kept, kind, values = formats.by_name(name), gguf.GGMLQuantizationType[name], weights()
    peer = np.linalg.norm(gguf.dequantize(gguf.quantize(values, kind), kind) - values) / np.linalg.norm(values)
    assert relative_error(kept, values, kept.quantize(values)) <= peer * WORST_AGAINST_PEER


@pytest.mark.parametrize("kept", WRITTEN, ids=lambda kept: kept.name)
def test_blocks_of_any_kind_stay_finite(kept: formats.Format) -> None:
    size = max(kept.block_weights, 32)
    one = np.zeros(size, np.float32)
    one[size // 2] = -3.0
    ramp = np.linspace(0, 1, size, dtype=np.float32)
    kinds = [np.zeros(size, np.float32), one, ramp, -ramp, np.full(size, 0.25, np.float32), ramp * 1e-30, ramp * 1e30]
    values = np.stack(kinds)
    raw = kept.quantize(values)
    found = kept.dequantize(raw).reshape(len(kinds), -1)
    assert np.isfinite(found).all()
    assert not found[0].any()
    assert np.argmin(found[1]) == size // 2
    kept.to_packed(raw, len(kinds), size)


@pytest.mark.parametrize("kept", WRITTEN, ids=lambda kept: kept.name)
def test_what_is_written_again_changes_little(kept: formats.Format) -> None:
    once = kept.dequantize(kept.quantize(weights()))
    twice = kept.dequantize(kept.quantize(once))
    assert np.linalg.norm(twice - once) <= np.linalg.norm(once) * max(WORST_ERROR[kept.name] * 0.7, 1e-7)


def test_read_only_formats_say_so() -> None:
    with pytest.raises(ValueError, match="does not write"):
        formats.by_name("IQ3_S").quantize(np.zeros(256, np.float32))
    with pytest.raises(ValueError, match="finite"):
        formats.by_name("Q4_0").quantize(np.full(32, np.nan, np.float32))
    with pytest.raises(ValueError, match="multiple of 32"):
        formats.by_name("Q4_0").quantize(np.zeros(31, np.float32))


def test_division_by_nothing_gives_nothing() -> None:
    found = fitting.divide(np.array([1, 1e30, 2], np.float32), np.array([0, 1e-30, 4], np.float32))
    assert found.tolist() == [0, 0, 0.5]


@pytest.mark.parametrize("kept", WRITTEN, ids=lambda kept: kept.name)
def test_a_block_is_the_same_whatever_stands_beside_it(kept: formats.Format) -> None:
    """Blocks are quantized in tiles; threads and the size of a chunk must not show in a file."""
    size = max(kept.block_weights, 32)
    values = weights((2003, size))
    whole = kept.quantize(values).reshape(len(values), -1)
    for rows in (slice(0, 1), slice(1, 8), slice(1995, 2003)):
        assert np.array_equal(kept.quantize(values[rows]).reshape(-1, whole.shape[1]), whole[rows])
