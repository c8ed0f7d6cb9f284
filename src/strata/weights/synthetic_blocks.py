"""Random weights as blocks of a GGUF type, made as bytes: a model of any size without ever having its values.

Knows the two types that serve for it and how a block's scale follows from the row; knows no file. The same name, shape
and seed give the same bytes.
"""

import math
from collections.abc import Iterator

import numpy as np

from strata.errors import SettingsError
from strata.weights.gguf_types import GgmlType
from strata.weights.synthetic import key_of

# Standard deviation of a uniform random code, in units of the block's scale.
_CODE_SPREAD = {"Q4_0": math.sqrt((16**2 - 1) / 12), "Q8_0": math.sqrt((256**2 - 1) / 12)}
_CHUNK_BYTES = 8 << 20  # larger ones are mapped anew each time: twice the time


def check_block_type(flag: str, name: str) -> str:
    """The type's name as GGUF spells it. Raises SettingsError for types whose random bytes are no sensible weights."""
    wanted = name.upper()
    if wanted not in _CODE_SPREAD:
        raise SettingsError(f"--{flag} {name} does not work for random weights; one of these does: Q4_0, Q8_0")
    return wanted


def random_blocks(name: str, kind: GgmlType, shape: tuple[int, ...], seed: int) -> Iterator[np.ndarray]:
    """The bytes of a tensor, some MiB at a time: uint8. Its weights have variance 1 / columns, as in `rule_of`."""
    bits = np.random.SFC64(key_of(name, seed))
    random = np.random.Generator(bits)
    blocks = math.prod(shape) // kind.block_weights
    scale = 1 / (_CODE_SPREAD[kind.name] * math.sqrt(shape[-1]))
    step = _CHUNK_BYTES // kind.block_bytes
    for first in range(0, blocks, step):
        count = min(step, blocks - first)
        words = bits.random_raw(-(-count * kind.block_bytes // 8))
        chunk = words.view(np.uint8)[: count * kind.block_bytes].reshape(count, kind.block_bytes)
        scales = random.uniform(0.8 * scale, 1.2 * scale, count).astype(np.float16)
        chunk[:, :2] = scales.view(np.uint8).reshape(count, 2)
        yield chunk.reshape(-1)
