"""code8: one weight a byte, the integer itself. Knows the order of bytes in a word."""

import numpy as np
from numpy.typing import NDArray

WORDS = 8  # 32-bit words a block of 32 columns


def join(integers: NDArray[np.int8]) -> NDArray[np.uint32]:
    """integers [rows, columns] -> words [rows, blocks, 8]: word j holds elements 4j .. 4j + 3."""
    rows, columns = integers.shape
    return np.ascontiguousarray(integers).view(np.uint32).reshape(rows, columns // 32, WORDS)


def split(words: NDArray[np.uint32]) -> NDArray[np.int8]:
    """words [rows, blocks, 8] -> integers [rows, columns]."""
    rows, blocks, _ = words.shape
    return np.ascontiguousarray(words).view(np.int8).reshape(rows, blocks * 32)
