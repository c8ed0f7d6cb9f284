"""Sets of token ids, one bit an id: which tokens may be drawn from a row of logits.

Knows bits and rows; not why a token is allowed. A mask is int32 words `[words]` in which id i is bit i % 32 of word
i // 32, the layout that GPUs unpack too; a vocabulary of 152,000 ids is 19 KB. Ids without a bit are ruled out.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

TokenMask = npt.NDArray[np.int32]

# What the eight bits of a byte add to eight logits. A sum by table takes 45 us for 152,000 ids whatever the mask;
# torch.where took 90 to 520, most where bits come at random (one thread, docs/log.md, 2026-11-30).
_BITS_OF_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED = np.where(_BITS_OF_BYTES, np.float32(0), np.float32("-inf"))


def words_for(width: int) -> int:
    """Words of a mask for ids 0 to `width` - 1."""
    return (width + 31) // 32


def mask_of_bytes(data: bytes, width: int) -> TokenMask:
    """A mask for `width` ids from its bytes in little-endian order; bits behind the width are dropped."""
    mask = np.zeros(4 * words_for(width), dtype=np.uint8)
    count = min(len(data), len(mask))
    mask[:count] = np.frombuffer(data, dtype=np.uint8, count=count)
    return _cut(mask.view(np.int32), width)


def mask_without(width: int, token_ids: Iterable[int]) -> TokenMask:
    """The mask that allows all of `width` ids but these."""
    allowed = np.ones(width, dtype=bool)
    allowed[[token_id for token_id in token_ids if token_id < width]] = False
    return mask_of_bytes(np.packbits(allowed, bitorder="little").tobytes(), width)


def allows(mask: TokenMask, token_id: int) -> bool:
    """Whether the mask has the bit of an id."""
    word = token_id >> 5
    return 0 <= word < len(mask) and bool((int(mask[word]) >> (token_id & 31)) & 1)


def rule_out(logits: torch.Tensor, mask: TokenMask) -> torch.Tensor:
    """A copy of a float32 row `[vocabulary]` in which tokens outside of the mask have -inf.

    Those that were NaN or inf have NaN: what is not a number shows in the result, wherever in the row it stands.
    """
    added = _ADDED.take(mask.view(np.uint8), axis=0).reshape(-1)[: logits.shape[0]]
    return logits + torch.from_numpy(added).to(logits.device)


def _cut(mask: TokenMask, width: int) -> TokenMask:
    if width % 32:
        mask[-1] &= np.int32((1 << (width % 32)) - 1)
    return mask
