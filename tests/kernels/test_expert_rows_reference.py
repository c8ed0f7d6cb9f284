"""The definition itself: fma against exact fractions, exp against float64, rows against a loop like the doc's words."""

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

from strata.kernels.expert_rows.reference import (
    EXP_COEFFICIENTS,
    combine,
    exp,
    expert_rows,
    fma,
    matrix_rows,
    quantize_rows,
    silu_times,
)
from strata.quant import formats
from strata.quant.layout import Code, MinKind
from strata.quant.packed import PackedMatrix, integers_of, min_values, scale_values
from tests.kernels.random_matrices import random_rows

ERROR_OF_INT8_ACTIVATIONS = 1.5e-2


def round_exactly(value: Fraction) -> float:
    """The float32 nearest to a fraction, ties to even, by comparing with both neighbours."""
    if value == 0:
        return 0.0
    near = np.float32(float(value))
    if np.isinf(near):
        return float(near)
    candidates = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]

    def key(candidate: np.float32) -> tuple[Fraction, int]:
        return abs(Fraction(float(candidate)) - value), int(candidate.view(np.uint32)) & 1

    return float(min((c for c in candidates if np.isfinite(c)), key=key))


def adversarial_triples() -> np.ndarray:
    """[n, 3] float32 where rounding once and rounding twice differ, and where numbers are tiny or cancel."""
    random = np.random.default_rng(1)
    bits = random.integers(0, 1 << 32, (4000, 3), dtype=np.uint32)
    wild = bits.view(np.float32)
    wild = wild[np.isfinite(wild).all(axis=1)]
    wild = wild[np.abs(wild[:, 0].astype(float) * wild[:, 1]) < 1e38]
    a, b = random.standard_normal((2, 4000)).astype(np.float32)
    cancelling = np.stack((a, b, -(a * b)), axis=1)
    # (1 + x)(1 - x) = 1 - x^2: a product a hair below half an ulp of an odd addend. float64 drops the hair and ties up.
    ulp, halves = np.float32(2.0**-23), []
    for k in range(1, 400):
        for sign in (1, -1):
            addend = sign * np.float32(1 + (2 * k - 1) * ulp)
            halves.append((np.float32(1 + k * ulp), np.float32(sign * (1 - k * ulp) * 2.0**-24), addend))
            halves.append((np.float32(1 + k * ulp), np.float32(-sign * (1 - k * ulp) * 2.0**-24), addend))
            tiny = np.float32((1 + k * ulp) * 2.0**-149), np.float32(sign * 2.0**-140)
            halves.append((np.float32(1 + 3 * ulp), *tiny))
    return np.concatenate((wild, cancelling, np.array(halves, np.float32)))


def test_fma_rounds_once() -> None:
    triples = adversarial_triples()
    found = fma(*torch.from_numpy(triples).unbind(1)).numpy()
    for (a, b, c), value in zip(triples, found, strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        assert float(value) == round_exactly(exact), (a, b, c)


def test_fma_needs_rounding_to_odd() -> None:
    a, b, c = torch.from_numpy(adversarial_triples()).unbind(1)
    plain = (a.double() * b.double() + c.double()).float()
    assert not torch.equal(plain, fma(a, b, c)), "these values must catch an fma that rounds twice"


def test_constants_of_exp_are_those_of_float_arithmetic() -> None:
    for coefficient, divisor in zip(EXP_COEFFICIENTS, (720, 120, 24, 6, 2, 1, 1), strict=True):
        assert np.float32(coefficient) == np.float32(1) / np.float32(divisor)
        assert np.float32(coefficient) == np.float32(struct.unpack("f", struct.pack("f", 1 / divisor))[0])


def test_exp_is_close_to_float64_and_keeps_to_its_ends() -> None:
    x = torch.cat((torch.linspace(-87, 88, 20001), torch.tensor([-1e30, 1e30, 0.0, -0.0])))
    wanted = x.clamp(-87, 88).double().exp()
    assert ((exp(x).double() - wanted) / wanted).abs().max() < 3e-7
    assert exp(torch.zeros(1)).item() == 1.0


@pytest.mark.parametrize("largest", [0.0, 2.0**-101, 2.0**-100, 1e-38, 1e-20, 1.0, 3e38])
def test_activations_keep_their_sign_and_stay_within_127(largest: float) -> None:
    x = torch.linspace(-1, 1, 64).mul(largest).reshape(1, 64)
    rows = quantize_rows(x)
    assert rows.q.abs().max() <= 127
    if largest < 2.0**-100:
        assert not rows.q.any() and not rows.d.any()
    else:
        error = (rows.q.double() * rows.d.double()[..., None]).reshape(1, 64) - x.double()
        assert error.abs().max() <= largest / 127 * 0.501


def test_divisions_of_the_activations_are_rounded_once() -> None:
    largest = np.random.default_rng(2).uniform(0.1, 9, 500).astype(np.float32)
    rows = quantize_rows(torch.from_numpy(np.repeat(largest[:, None], 32, axis=1)))
    assert np.array_equal(rows.d[:, 0].numpy(), largest / np.float32(127))


def some_matrix(name: str, rows: int, columns: int, seed: int) -> PackedMatrix:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * 0.05
    kept = formats.by_name(name)
    if kept.quantize_blocks is None:
        raw = np.random.default_rng(seed).integers(0, 256, rows * kept.row_bytes(columns), dtype=np.uint8)
        blocks = raw.reshape(-1, kept.block_bytes)
        for offset in kept.half_scales:
            blocks[:, offset : offset + 2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
        return kept.to_packed(raw, rows, columns)
    return kept.to_packed(kept.quantize(values), rows, columns)


def rows_by_hand(matrix: PackedMatrix, x: np.ndarray) -> list[float]:
    """One row of x, with fractions rounded where the document rounds."""
    layout, arrays = matrix.layout, matrix.to_rows()
    if layout.code.is_float:
        return [_float_row(weights, x) for weights in matrix.decode().numpy()]
    quantized = quantize_rows(torch.from_numpy(x)[None])
    q, d = quantized.q[0].numpy().astype(int), quantized.d[0].numpy()
    integers, scales = integers_of(layout, arrays).astype(int), scale_values(layout, arrays)
    minimums = min_values(layout, arrays)
    sums = []
    for row in range(layout.rows):
        lanes = [np.float32(0)] * 8
        for block in range(layout.blocks):
            part = min(layout.sub_block, 32)
            starts = range(block * 32, block * 32 + 32, part)
            terms = []
            for start in starts:
                columns = slice(start, start + part)
                total = int((q.reshape(-1)[columns] * integers[row, columns]).sum())
                terms.append((scales[row, start // layout.sub_block] * d[block], total))
            for start in starts if layout.min_kind is not MinKind.NONE else ():
                assert minimums is not None
                inside = q.reshape(-1)[start : start + part]
                terms.append((-(minimums[row, start // layout.sub_block] * d[block]), int(inside.sum())))
            for factor, whole in terms:
                exact = Fraction(float(factor)) * whole + Fraction(float(lanes[block % 8]))
                lanes[block % 8] = np.float32(round_exactly(exact))
        sums.append(_post(_tree(lanes), matrix))
    return sums


def _float_row(weights: np.ndarray, x: np.ndarray) -> float:
    lanes = [np.float32(0)] * 16
    for k, (weight, value) in enumerate(zip(weights, x, strict=True)):
        exact = Fraction(float(weight)) * Fraction(float(value)) + Fraction(float(lanes[k % 16]))
        lanes[k % 16] = np.float32(round_exactly(exact))
    return float(_tree(lanes))


def _tree(lanes: list[np.float32]) -> np.float32:
    while len(lanes) > 1:
        lanes = [low + high for low, high in zip(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :], strict=True)]
    return lanes[0]


def _post(value: np.float32, matrix: PackedMatrix) -> float:
    return float(value if matrix.post_scale == 1 else value * np.float32(matrix.post_scale))


@pytest.mark.parametrize("kept", formats.ALL, ids=lambda kept: kept.name)
def test_rows_are_what_a_loop_over_fractions_gives(kept: formats.Format) -> None:
    columns = max(kept.block_weights, 32) * (1 if kept.block_weights == 256 else 5)
    matrix = some_matrix(kept.name, 3, columns, seed=3)
    x = np.random.default_rng(4).standard_normal(columns).astype(np.float32)
    found = matrix_rows(matrix, torch.from_numpy(x)[None])[0]
    assert found.tolist() == rows_by_hand(matrix, x)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q6_K", "NVFP4", "Q8_0", "Q2_0", "BF16"])
def test_a_row_has_the_same_bits_among_any_others(name: str) -> None:
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(0))
    matrix = some_matrix(name, 40, 512, seed=5)
    together = matrix_rows(matrix, x)
    alone = torch.cat([matrix_rows(matrix, row[None]) for row in x])
    assert torch.equal(together, alone)
    assert matrix_rows(matrix, x[:0]).shape == (0, 40)


def random_expert(seed: int) -> tuple[list[PackedMatrix], torch.Tensor]:
    """Three matrices in formats of their own, of a random size, and rows for them."""
    random = np.random.default_rng(seed)
    names = [kept.name for kept in formats.ALL]
    gate_name, down_name = str(random.choice(names)), str(random.choice(names))
    hidden, width = (int(random.integers(1, 5)) * 64 for _ in range(2))
    if "K" in gate_name or "IQ" in gate_name or "XS" in gate_name:
        hidden = 256
    if "K" in down_name or "IQ" in down_name:
        width = 256
    matrices = [
        some_matrix(gate_name, width, hidden, seed),
        some_matrix(gate_name, width, hidden, seed + 1),
        some_matrix(down_name, hidden, width, seed + 2),
    ]
    x = torch.from_numpy(random.standard_normal((int(random.integers(1, 4)), hidden)).astype(np.float32))
    return matrices, x


def test_experts_are_close_to_float64_of_the_same_weights() -> None:
    for seed in range(120):
        (gate, up, down), x = random_expert(seed)
        found = expert_rows(gate, up, down, x).double()
        g, u = (x.double() @ each.decode().double().T for each in (gate, up))
        wanted = (torch.nn.functional.silu(g) * u) @ down.decode().double().T
        error = (found - wanted).norm() / wanted.norm()
        assert error <= ERROR_OF_INT8_ACTIVATIONS, (seed, gate.layout, down.layout, float(error))


def test_silu_times_is_close_to_torch() -> None:
    gate = torch.linspace(-100, 100, 4001)
    up = torch.full_like(gate, 0.7)
    wanted = torch.nn.functional.silu(gate.double()) * up.double()
    assert (silu_times(gate, up).double() - wanted).abs().max() < 1e-5


def test_combine_skips_rows_that_were_not_computed() -> None:
    rows = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.1, 0.0]])
    computed = torch.tensor([[True, False, True], [True, True, False]])
    shared = torch.ones(2, 8)
    stale = rows.masked_fill(~computed[..., None], float("nan"))
    found = combine(stale, weights, computed)
    assert torch.allclose(found, (rows * (weights * computed)[..., None]).sum(dim=1), atol=1e-6)
    assert torch.equal(combine(stale, weights, computed, shared), found + shared)


@pytest.mark.parametrize("hidden", [40, 33])
def test_ranks_are_added_in_order_and_the_shared_row_last(hidden: int) -> None:
    rows, weights = random_rows(1, 6, hidden).reshape(2, 3, hidden), torch.rand(2, 3, generator=torch.Generator())
    shared, gates, everything = random_rows(2, 2, hidden), torch.tensor([0.3, 0.9]), torch.ones(2, 3, dtype=torch.bool)
    for n in range(2):
        total = torch.zeros(hidden)
        for rank in range(3):
            total = fma(weights[n, rank].expand(hidden), rows[n, rank], total)
        assert torch.equal(combine(rows, weights, everything)[n], total)
        assert torch.equal(combine(rows, weights, everything, shared)[n], total + shared[n])
        gated = combine(rows, weights, everything, shared, gates)
        assert torch.equal(gated[n], fma(gates[n].expand(hidden), shared[n], total))
    ungated = combine(rows, weights, everything, shared, torch.ones(2))
    assert torch.equal(ungated, combine(rows, weights, everything, shared))


def test_rows_of_another_size_are_refused() -> None:
    matrix = some_matrix("Q4_0", 2, 64, seed=0)
    with pytest.raises(ValueError, match=r"\[n, 64\]"):
        matrix_rows(matrix, torch.zeros(1, 32))
    assert matrix.layout.code is Code.CODE4
