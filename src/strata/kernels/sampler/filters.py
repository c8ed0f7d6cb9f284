"""What options of numbers alone do to logits, and the draw: pure functions that every device repeats bit for bit.

Know logits; no request. A token that is ruled out has the logit -inf; of equal logits the lower id comes first.
Nothing is added up in an order that matters: sums are sums of integers.
"""

import torch

from strata.kernels.sampler.philox import GUMBEL_MAX, GUMBEL_MIN, gumbel

RULED_OUT = float("-inf")

# Weights of probabilities: floor(2^30 e^x), so that the sums of a row are exact in any order and in float64. e^x by
# float32 multiply, add and subtract one at a time: n = round(x / ln 2) by adding and taking away 1.5 * 2^23, then
# x - n ln 2 in two steps, a polynomial, times 2^n. Below -21 the weight is 0.
WEIGHT_BITS = 30
FARTHEST = 32.0
LOG2_E = 1.44269504
ROUNDER = 12582912.0
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # a multiple of n <= 47 times the first is exact
EXP_COEFFICIENTS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)  # each rounded to float32

BINS_A_UNIT = 32  # of distances from the largest logit, where the host looks for the last token that top-p keeps


def scale_by_temperature(logits: torch.Tensor, inverse_temperature: float) -> torch.Tensor:
    """Distances from the row's largest logit, over the temperature: no temperature makes them overflow."""
    return (logits - logits.amax(dim=-1, keepdim=True)) * inverse_temperature


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Keep the k largest logits of each row `[rows, vocabulary]`."""
    if k >= logits.shape[-1]:
        return logits
    smallest = torch.topk(logits, k, dim=-1).values[:, -1:]
    larger, equal = logits > smallest, logits == smallest
    room = k - larger.sum(dim=-1, keepdim=True)  # of the equal ones, the first that fit
    return logits.masked_fill(~(larger | (equal & (equal.cumsum(dim=-1) <= room))), RULED_OUT)


def keep_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the fewest largest tokens whose weights, of those still there, reach p times the sum of all; at least one.

    p times the sum is one product in float64 of p and an integer below 2^53, compared with integers below 2^53.
    """
    distances = logits - logits.amax(dim=-1, keepdim=True)
    kept = torch.stack([_in_top_p(row, p) for row in distances])
    return logits.masked_fill(~kept, RULED_OUT)


def keep_min_p(logits: torch.Tensor, log_min_p: float) -> torch.Tensor:
    """Keep tokens with at least `min_p` times the probability of the likeliest."""
    least = logits.amax(dim=-1, keepdim=True) + log_min_p
    return logits.masked_fill(logits < least, RULED_OUT)


def draw_token(logits: torch.Tensor, seed: int, position: int, choice: int) -> int:
    """Draw from softmax of a row `[vocabulary]`: the largest sum of logit and Gumbel noise, the lower id among equals.

    Each token's noise depends on its own id alone, so nothing is added up and the order does not matter. Noise is made
    only for tokens that can still win: rounding is monotonic, so the others lose with any noise.
    """
    can_win = logits + GUMBEL_MAX >= logits.max() + GUMBEL_MIN
    token_ids = torch.nonzero(can_win).flatten()
    scores = logits[token_ids] + gumbel(seed, position, token_ids, choice)
    return int(token_ids[scores.argmax()])


def weights_of(distances: torch.Tensor) -> torch.Tensor:
    """floor(2^30 e^x), int32, of distances x <= 0 (float32, any shape)."""
    x = distances.clamp(min=-FARTHEST)
    n = (x * LOG2_E + ROUNDER) - ROUNDER
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    value = torch.full_like(r, EXP_COEFFICIENTS[0])
    for coefficient in EXP_COEFFICIENTS[1:]:
        value = value * r + coefficient
    power = ((n.to(torch.int32) + (127 + WEIGHT_BITS)) << 23).view(torch.float32)
    return (value * power).to(torch.int32)


def _in_top_p(distances: torch.Tensor, p: float) -> torch.Tensor:
    """Which tokens of a row `[vocabulary]` are kept. Sums by bins of distance first: only the last bin is sorted."""
    token_ids = torch.nonzero(distances > -FARTHEST).flatten()  # the others weigh nothing
    near = distances[token_ids]
    weights = weights_of(near).double()
    bins = (near * -BINS_A_UNIT).to(torch.int64)
    sums = torch.bincount(bins, weights).cumsum(dim=0)
    enough = p * float(sums[-1])
    last = int((sums < enough).sum())
    inside = torch.nonzero(bins == last).flatten()  # rising ids, so a stable sort leaves equal ones in order
    ordered = inside[torch.sort(near[inside], descending=True, stable=True).indices]
    before = float(sums[last - 1]) if last > 0 else 0.0
    count = 1 + int((before + weights[ordered].cumsum(dim=0) < enough).sum())
    is_kept = bins < last
    is_kept[ordered[:count]] = True
    kept = torch.zeros_like(distances, dtype=torch.bool)
    kept[token_ids[is_kept]] = True
    return kept
