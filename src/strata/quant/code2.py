"""code2: four weights a byte, each an index into a table of four integers. Knows the order of bits in a word."""

import numpy as np
from numpy.typing import NDArray

WORDS = 2  # 32-bit words a block of 32 columns


def join(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """codes [rows, columns] of 0..3 -> words [rows, blocks, 2]: bits 2f of byte k of word j: element 8f + 4j + k."""
    rows, columns = codes.shape
    parts = codes.reshape(rows, columns // 32, 4, 8)
    joined = parts[:, :, 0] | (parts[:, :, 1] << 2) | (parts[:, :, 2] << 4) | (parts[:, :, 3] << 6)
    return np.ascontiguousarray(joined).view(np.uint32)


def split(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """words [rows, blocks, 2] -> codes [rows, columns]."""
    rows, blocks, _ = words.shape
    packed = np.ascontiguousarray(words).view(np.uint8)
    parts = [(packed >> shift) & 3 for shift in (0, 2, 4, 6)]
    return np.stack(parts, axis=2).reshape(rows, blocks * 32)
