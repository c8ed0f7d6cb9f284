"""code4: two weights a byte, each an index into a table of sixteen integers. Knows the order of bits in a word."""

import numpy as np
from numpy.typing import NDArray

WORDS = 4  # 32-bit words a block of 32 columns


def join(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """codes [rows, columns] of 0..15 -> words [rows, blocks, 4]: byte k of word j: elements 4j + k, 16 + 4j + k."""
    rows, columns = codes.shape
    halves = codes.reshape(rows, columns // 32, 2, 16)
    return np.ascontiguousarray(halves[:, :, 0] | (halves[:, :, 1] << 4)).view(np.uint32)


def split(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """words [rows, blocks, 4] -> codes [rows, columns]."""
    rows, blocks, _ = words.shape
    packed = np.ascontiguousarray(words).view(np.uint8)
    return np.stack((packed & 15, packed >> 4), axis=2).reshape(rows, blocks * 32)
