"""Kernels that run one function of the sampler's kernels over an array. Needs Triton; knows no expected value."""
# mypy: allow-untyped-defs, no-check-untyped-defs

import triton
import triton.language as tl

from strata.kernels.sampler.draws import gumbel, weight_of
from strata.kernels.sampler.order import float_of, number_of, packed, token_of
from strata.kernels.sampler.search import coarse_bin, coarse_start


@triton.jit
def numbers_kernel(distances, noise, weights, counter, COUNT: tl.constexpr):
    """Noise of token ids 0, 77, 154, .. and weights of distances; counter: two words of seed, position, choice."""
    seed_low, seed_high = tl.load(counter), tl.load(counter + 1)
    position, choice = tl.load(counter + 2), tl.load(counter + 3)
    index = tl.arange(0, COUNT)
    tl.store(noise + index, gumbel(seed_low, seed_high, position, index * 77, choice))
    tl.store(weights + index, weight_of(tl.load(distances + index)))


@triton.jit
def order_kernel(values, winners, token_ids, numbers, COUNT: tl.constexpr):
    """Values and their places packed, and taken apart again; one program."""
    index = tl.arange(0, COUNT)
    winner = packed(tl.load(values + index), index)
    tl.store(winners + index, winner)
    tl.store(token_ids + index, token_of(winner))
    tl.store(numbers + index, float_of(number_of(winner)))


@triton.jit
def bins_kernel(magnitudes, bins, starts, ends, COUNT: tl.constexpr):
    """The coarse bins of magnitudes, where they start and where the next ones do; one program."""
    index = tl.arange(0, COUNT)
    bin = coarse_bin(tl.load(magnitudes + index))
    tl.store(bins + index, bin)
    tl.store(starts + index, coarse_start(bin))
    tl.store(ends + index, coarse_start(bin + 1))
