"""Codes of keys and values: bytes, bits against scalar arithmetic, errors within half a step, rotation undone."""

import math
import struct

import pytest
import torch

from strata.quant.cell_codes import HEAD_DIMS, CellCode, CellKind, CellRows, check_rows, decode, encode, rotate
from tests.quant.hard_heads import hard_heads

CODED = (CellCode.CODE8, CellCode.CODE4)


def float32(value: float) -> float:
    """Rounded once to float32."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def scalar_levels(head: list[float], most: int) -> tuple[list[int], list[float]]:
    """The definition in scalars: quotients of float32 in float64, rounded once to float32, are IEEE divisions."""
    levels, scales = [], []
    for begin in range(0, len(head), 64):
        group = head[begin : begin + 64]
        scale = struct.unpack("e", struct.pack("e", min(float32(max(map(abs, group)) / most), 65504.0)))[0]
        scales.append(scale)
        quotients = [float32(value / scale) if scale else 0.0 for value in group]
        levels += [
            int(min(max(quotient if math.isinf(quotient) else round(quotient), -most), most)) for quotient in quotients
        ]
    return levels, scales


def scalar_rotation(head: list[float]) -> list[float]:
    head, stride = list(head), 1
    while stride < len(head):
        for first in range(len(head)):
            if not first & stride:
                a, b = head[first], head[first + stride]
                head[first], head[first + stride] = float32(a + b), float32(a - b)
        stride *= 2
    return [float32(value * float32(len(head) ** -0.5)) for value in head]


def scales_of(rows: CellRows) -> torch.Tensor:
    assert rows.scales is not None
    return rows.scales


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_codes_and_scales_are_those_of_scalar_arithmetic(head_dim: int) -> None:
    x = hard_heads(head_dim)
    eights, fours = encode(CellCode.CODE8, x), encode(CellCode.CODE4, x)
    for row, head in enumerate(x.tolist()):
        levels, scales = scalar_levels(head, 127)
        assert eights.codes[row].tolist() == levels and scales_of(eights)[row].tolist() == scales
        levels, scales = scalar_levels(scalar_rotation(head), 7)
        half = head_dim // 2
        packed = [low + 8 | high + 8 << 4 for low, high in zip(levels[:half], levels[half:], strict=True)]
        assert fours.codes[row].tolist() == packed and scales_of(fours)[row].tolist() == scales


@pytest.mark.parametrize("code", CODED)
def test_what_is_decoded_lies_within_half_a_step(code: CellCode) -> None:
    x = hard_heads(256)[[0, 1, 5, 6, 7]]
    rows = encode(code, x)
    wanted = rotate(x) if code.is_rotated else x
    most = 7 if code.is_rotated else 127
    # A scale is within half a unit in its last place of peak / most: 2^-11 of it, or half the least float16 step.
    step = wanted.unflatten(-1, (-1, 64)).abs().amax(-1, keepdim=True) / most
    allowed = step * (0.5 + most * 2.0**-11) + most * 2.0**-25
    assert bool(((decode(code, rows, 256) - wanted).unflatten(-1, (-1, 64)).abs() <= allowed * 1.0001).all())


def test_bfloat16_rounds_once_to_nearest_even_and_float32_keeps_all() -> None:
    x = hard_heads(64)
    assert torch.equal(decode(CellCode.BF16, encode(CellCode.BF16, x), 64), x.bfloat16().float())
    assert torch.equal(decode(CellCode.F32, encode(CellCode.F32, x), 64), x)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_rotation_keeps_products_and_undoes_itself(head_dim: int) -> None:
    x, y = torch.randn(2, 5, head_dim, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(rotate(rotate(x)), x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((rotate(x) * rotate(y)).sum(-1), (x * y).sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("code", CellCode)
def test_heads_that_are_not_finite_give_rows_and_no_error(code: CellCode) -> None:
    x = hard_heads(128)
    x[0, 0], x[1, 1], x[2, 2] = math.nan, math.inf, -math.inf
    rows = encode(code, x)
    clean = encode(code, hard_heads(128)[3:])
    assert torch.equal(rows.codes[3:], clean.codes)
    assert decode(code, rows, 128).shape == x.shape


@pytest.mark.parametrize(
    ("kind", "head_bytes"),
    [("f32", 2048), ("bf16", 1024), ("int8", 528), ("k8v4", 400), ("q4", 272)],
)
def test_bytes_of_a_key_and_a_value_of_256(kind: str, head_bytes: int) -> None:
    sides = CellKind(kind).keys, CellKind(kind).values
    rows = [CellRows.zeros(code, 3, 2, head_dim=256) for code in sides]
    stored = sum(part.nbytes for side in rows for part in (side.codes, side.scales) if part is not None)
    assert CellKind(kind).head_bytes(256) == head_bytes and stored == 6 * head_bytes
    assert all(not decode(code, side, 256).any() for code, side in zip(sides, rows, strict=True))


def test_rows_are_taken_and_set_by_place() -> None:
    rows = CellRows.zeros(CellCode.CODE4, 4, 2, head_dim=64)
    rows[1:3] = encode(CellCode.CODE4, hard_heads(64)[:4].reshape(2, 2, 64))
    assert torch.equal(rows[2].codes, encode(CellCode.CODE4, hard_heads(64)[2:4]).codes)
    assert not rows[0].codes.any() and not rows[3].codes.any()


def test_what_cannot_be_stored_heads_is_refused() -> None:
    rows = encode(CellCode.CODE8, hard_heads(64))
    with pytest.raises(ValueError, match="head_dim must be one of 32, 64, 128, 256, not 48"):
        encode(CellCode.CODE8, torch.zeros(2, 48))
    with pytest.raises(ValueError, match="head_dim must be one of 32, 64, 128, 256, not 48"):
        rotate(torch.zeros(2, 48))
    with pytest.raises(ValueError, match=r"heads to encode must be float32, not torch\.float16"):
        encode(CellCode.CODE8, hard_heads(64).half())
    with pytest.raises(
        ValueError, match=r"keys: codes of code4 must be torch.uint8 of 32 columns, not torch.int8 of 64"
    ):
        check_rows("keys", CellCode.CODE4, rows, 64)
    with pytest.raises(ValueError, match="keys: code8 has 1 scales a head, these rows none"):
        check_rows("keys", CellCode.CODE8, CellRows(rows.codes), 64)
    with pytest.raises(ValueError, match=r"scales of code8 must be float16 \(8, 1\), not torch.float16 \(4, 1\)"):
        check_rows("keys", CellCode.CODE8, CellRows(rows.codes, scales_of(rows)[:4]), 64)
