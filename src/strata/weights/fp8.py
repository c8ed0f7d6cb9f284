"""Block FP8: float8_e4m3fn weights with one scale for each block of rows x columns. Torch only.

Knows the arithmetic of the published format (`weight_scale_inv` multiplies); knows no file and no name.
"""

import torch

MAX_FP8 = 448.0  # largest value of float8_e4m3fn


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """The shape of the scales of a weight [.., rows, columns]: one for each block, ragged edges included."""
    *lead, rows, columns = shape
    return (*lead, -(-rows // block[0]), -(-columns // block[1]))


def decode_rows(
    weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int], row_ids: torch.Tensor
) -> torch.Tensor:
    """Some rows of a matrix: weight * scale of its block.

    weight [n, columns] float8_e4m3fn, scale [row blocks, column blocks] of the whole matrix, row_ids [n] int64: where
    in the whole matrix these rows stand -> [n, columns] float32.
    """
    return decode_scaled(weight, scale[row_ids // block[0]], block)


def decode_scaled(weight: torch.Tensor, row_scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """weight [n, columns] float8_e4m3fn, row_scales [n, column blocks]: those of each row -> [n, columns] float32."""
    wide_scale = row_scales.float().repeat_interleave(block[1], dim=1)[:, : weight.shape[1]]
    return weight.float().mul_(wide_scale)


def decode_blocks(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """weight [.., rows, columns] float8_e4m3fn, scale as `scale_shape` says -> weight * scale in float32."""
    rows, columns = weight.shape[-2:]
    matrices = weight.reshape(-1, rows, columns)
    scales = scale.reshape(-1, *scale.shape[-2:])
    row_ids = torch.arange(rows)
    decoded = [decode_rows(each, its_scale, block, row_ids) for each, its_scale in zip(matrices, scales, strict=True)]
    return torch.stack(decoded).reshape(weight.shape)


def encode_blocks(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [.., rows, columns] -> (float8_e4m3fn of its shape, float32 scales): a block's largest value is 448."""
    *lead, rows, columns = weight.shape
    scales = scale_shape(tuple(weight.shape), block)
    padded = torch.zeros(*lead, scales[-2] * block[0], scales[-1] * block[1])
    padded[..., :rows, :columns] = weight
    # tiles [.., row blocks, rows, column blocks, columns]
    tiles = padded.unflatten(-1, (scales[-1], block[1])).unflatten(-3, (scales[-2], block[0]))
    largest = tiles.abs().amax(dim=(-3, -1))
    scale = torch.where(largest > 0, largest / MAX_FP8, torch.ones_like(largest))
    tiles = (tiles / scale[..., :, None, :, None]).clamp_(-MAX_FP8, MAX_FP8)
    coded = tiles.flatten(-2).flatten(-3, -2)[..., :rows, :columns]
    return coded.contiguous().to(torch.float8_e4m3fn), scale
