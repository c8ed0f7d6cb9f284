"""Depthwise causal convolution of rows with a kept tail. Knows no family and no slot."""

import torch
import torch.nn.functional as F


def tail_rows(kernel: int, dilation: int = 1) -> int:
    """How many rows before a row its convolution reaches back."""
    return (kernel - 1) * dilation


def convolve(extended: torch.Tensor, taps: torch.Tensor, dilation: int = 1) -> torch.Tensor:
    """silu of the convolution of every row that has its whole past in `extended`.

    extended [..., tail + rows, width]: the tail (zeros at the start of a text), then the rows;
    taps [kernel, width], the last tap meets the row itself. Returns [..., rows, width].
    Taps are added in order, element by element: a row's bits do not depend on the number of rows.
    """
    kernel = taps.shape[0]
    rows = extended.shape[-2] - tail_rows(kernel, dilation)
    summed = extended.narrow(-2, 0, rows) * taps[0]
    for tap in range(1, kernel):
        summed = summed + extended.narrow(-2, tap * dilation, rows) * taps[tap]
    return F.silu(summed)
