"""Blocks of every format for tests: random bytes with scales of every kind, among them the worst that are finite."""

import numpy as np
from numpy.typing import NDArray

from strata.quant.formats import Format

# +-0, the smallest and largest denormals, the smallest and largest normals, one.
WORST_HALVES = np.array([0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00], np.uint16)


def random_blocks(kept: Format, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """[count, block_bytes]: every code occurs, half of the f16 scales are among the worst."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (count, kept.block_bytes), dtype=np.uint8)
    for offset in kept.half_scales:
        blocks[:, offset : offset + 2] = _halves(random, count)
    if kept.name in ("F32", "F16", "BF16"):
        wide = random.standard_normal(count).astype(np.float32) * np.exp2(random.integers(-14, 14, count)).astype(
            np.float32
        )
        return kept.quantize(wide).reshape(count, -1)
    if kept.name == "MXFP4":
        blocks[:, 0] = random.integers(0, 255, count)
    if kept.name == "NVFP4":
        blocks[:, :4][blocks[:, :4] == 0xFF] = 0x7E
    return blocks


def mild_blocks(kept: Format, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """[count, block_bytes] as a real file could hold them: scales around 0.01."""
    blocks = random_blocks(kept, count, seed)
    for offset in kept.half_scales:
        scales = np.random.default_rng(seed).uniform(0.002, 0.02, count).astype(np.float16)
        blocks[:, offset : offset + 2] = scales[:, None].view(np.uint8)
    if kept.name == "MXFP4":
        blocks[:, 0] = 115 + blocks[:, 0] % 8
    return blocks


def _halves(random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    ordinary = random.integers(0, 0x7C00, count).astype(np.uint16) | (random.integers(0, 2, count) << 15).astype(
        np.uint16
    )
    mixed = np.where(random.random(count) < 0.5, ordinary, random.choice(WORST_HALVES, count)).astype(np.uint16)
    return mixed[:, None].view(np.uint8)
