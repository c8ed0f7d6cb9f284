"""The seed behind the multipliers of an n-gram hash: files hold the multipliers, config.json the seed.

Knows the hash's arithmetic only. A multiplier is 2 * (h mod m) + 1 of a 64-bit mix h of the seed that can be undone; m
is about 2^62 / vocabulary, so only some 4 * vocabulary values of h are possible.
"""

from collections.abc import Sequence

import numpy as np

DEFAULT_SEED = 1234
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_LARGEST_SEED = 1 << 48  # of two seeds that give the same multipliers people wrote the small one


def find_seed(multipliers: Sequence[int], vocabulary_size: int) -> int | None:
    """A seed whose multipliers these are; None if there is none."""
    bound = max(1, ((1 << 63) - 1) // vocabulary_size // 2)
    wanted = tuple(multipliers)
    if not wanted:
        return None
    if _multipliers(DEFAULT_SEED, len(wanted), bound) == wanted:
        return DEFAULT_SEED
    if wanted[0] < 1 or wanted[0] % 2 == 0 or (wanted[0] - 1) // 2 >= bound:
        return None
    mixed = np.uint64((wanted[0] - 1) // 2) + np.arange(-(-(1 << 64) // bound), dtype=np.uint64) * np.uint64(bound)
    seeds = _unmix(mixed) - np.uint64(2 * _GAMMA & _MASK)
    for seed in np.sort(seeds[seeds < _LARGEST_SEED]).tolist():
        if _multipliers(seed, len(wanted), bound) == wanted:
            return seed
    return None


def _multipliers(seed: int, count: int, bound: int) -> tuple[int, ...]:
    return tuple(2 * (_mix(seed + _GAMMA * (index + 2)) % bound) + 1 for index in range(count))


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _unmix(value: np.ndarray) -> np.ndarray:
    """The inverse of `_mix` for many values."""
    value = _unshift(value, 31) * np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64))
    value = _unshift(value, 27) * np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
    return _unshift(value, 30)


def _unshift(value: np.ndarray, by: int) -> np.ndarray:
    """x from x ^ (x >> by)."""
    found = value
    for shift in range(by, 64, by):
        found = found ^ (value >> np.uint64(shift))
    return found
