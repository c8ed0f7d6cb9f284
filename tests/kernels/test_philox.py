"""The generator gives the published numbers, and the noise made of them is Gumbel noise, the same everywhere."""

import math

import numpy as np
import pytest
import torch

from strata.kernels.sampler.philox import (
    GUMBEL_MAX,
    GUMBEL_MIN,
    LN2_HIGH,
    LN2_LOW,
    LOG_POLYNOMIAL,
    SQRT_HALF_BITS,
    gumbel,
    gumbel_of_words,
    log_float32,
    philox,
)

ALL = 0xFFFFFFFF
# Philox4x32-10 in the known-answer file of Random123: counter, key, result.
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ALL] * 4, [ALL] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def philox_of_integers(seed: int, counter: list[int]) -> list[int]:
    """The other road: Python integers, straight from the paper."""
    key, x = [seed & ALL, seed >> 32 & ALL], list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [b >> 32 ^ x[1] ^ key[0], b & ALL, a >> 32 ^ x[3] ^ key[1], a & ALL]
        key = [(key[0] + 0x9E3779B9) & ALL, (key[1] + 0xBB67AE85) & ALL]
    return x


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_words_are_the_published_ones(counter: list[int], key: list[int], expected: list[int]) -> None:
    seed = key[1] << 32 | key[0]
    words = philox(seed, torch.tensor([counter[0]]), torch.tensor([counter[1]]), counter[2], counter[3])
    assert [int(word) for word in words] == expected == philox_of_integers(seed, counter)


def test_words_equal_integer_arithmetic_for_random_counters() -> None:
    random = np.random.default_rng(1)
    counters = random.integers(0, 1 << 32, (200, 2))
    seed = (1 << 64) - 3
    words = philox(seed, torch.tensor(counters[:, 0]), torch.tensor(counters[:, 1]), 7, 0)
    for row, (c0, c1) in enumerate(counters.tolist()):
        assert [int(word[row]) for word in words] == philox_of_integers(seed, [c0, c1, 7, 0])


def test_logarithm_is_within_a_unit_in_the_last_place() -> None:
    random = np.random.default_rng(2)
    x = np.concatenate([np.exp(random.uniform(-23, 4, 200_000)), random.uniform(0.5, 2, 200_000), [1.0]])
    x = x.astype(np.float32)
    exact = np.log(x.astype(np.float64))
    error = np.abs(log_float32(torch.from_numpy(x)).numpy() - exact)
    assert np.all(error <= 0.9 * np.spacing(np.abs(exact).astype(np.float32)))
    assert log_float32(torch.ones(1)) == 0


def test_noise_is_the_definition_in_float64() -> None:
    words = np.random.default_rng(3).integers(0, 1 << 32, 200_000)
    words[:4] = [0, 1, ALL, ALL - 1]
    v = np.minimum((words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)), np.float32(1 - 2.0**-24))
    exact = -np.log(-np.log1p(-v.astype(np.float64)))
    noise = gumbel_of_words(torch.from_numpy(words)).numpy()
    assert np.max(np.abs(noise - exact)) < 1e-6
    assert noise.max() == np.float32(GUMBEL_MAX) == noise[0]
    assert noise.min() == np.float32(GUMBEL_MIN) == noise[2]
    assert float(np.float32(GUMBEL_MAX)) == GUMBEL_MAX
    assert float(np.float32(GUMBEL_MIN)) == GUMBEL_MIN


def logarithm_in_single_steps(x: np.ndarray) -> np.ndarray:
    """numpy float32, one rounding an operation: what torch must not fuse."""
    bits = x.view(np.int32)
    exponent = (bits - np.int32(SQRT_HALF_BITS)) >> np.int32(23)
    f = (bits - (exponent << np.int32(23))).view(np.float32) - np.float32(1)
    polynomial = np.full_like(f, LOG_POLYNOMIAL[0])
    for coefficient in LOG_POLYNOMIAL[1:]:
        polynomial = polynomial * f + np.float32(coefficient)
    square, scale = f * f, exponent.astype(np.float32)
    tail = (f * square) * polynomial
    tail = tail + scale * np.float32(LN2_LOW)
    tail = tail - square * np.float32(0.5)
    return (f + tail) + scale * np.float32(LN2_HIGH)


def test_every_operation_rounds_once() -> None:
    x = np.exp(np.random.default_rng(4).uniform(-23, 4, 100_003)).astype(np.float32)
    assert np.array_equal(log_float32(torch.from_numpy(x)).numpy(), logarithm_in_single_steps(x))


def test_noise_keeps_its_bits() -> None:
    """The bits that kernels must repeat; a change here changes every seeded reply."""
    noise = gumbel(1234, 5, torch.tensor([0, 1, 2, 248_319]), 0)
    expected = ["-0x1.c6d0c40000000p-2", "0x1.102cee0000000p+2", "0x1.eca99c0000000p-2", "0x1.d0b6a40000000p+0"]
    assert [value.hex() for value in noise.tolist()] == expected


def test_noise_of_a_token_does_not_depend_on_its_neighbours() -> None:
    ids = torch.randperm(3000)
    whole = gumbel(9, 100, ids, 1)
    assert torch.equal(gumbel(9, 100, ids[17:40], 1), whole[17:40])
    assert torch.equal(gumbel(9, 100, ids.view(30, 100), 1).flatten(), whole)
    for other in (
        gumbel(8, 100, ids, 1),
        gumbel(9, 101, ids, 1),
        gumbel(9, 100, ids, 0),
        gumbel(9 + (1 << 32), 100, ids, 1),
    ):
        assert not torch.equal(other, whole)


def test_noise_has_the_moments_of_a_gumbel_distribution() -> None:
    noise = gumbel(5, 1, torch.arange(400_000), 0).double()
    assert abs(float(noise.mean()) - 0.5772156649) < 4 * math.pi / math.sqrt(6 * 400_000)
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.03
    for probability in (0.001, 0.1, 0.5, 0.9, 0.999, 0.99999):
        below = float((noise < -math.log(-math.log(probability))).double().mean())
        assert abs(below - probability) < 5 * math.sqrt(probability * (1 - probability) / 400_000)
