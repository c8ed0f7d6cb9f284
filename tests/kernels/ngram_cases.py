"""Random n-gram layers and tables, for tests of kernels and for tests/gpu; what holds of reads in runs on any road."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from strata.kernels.ngram_rows import NgramHash, NgramRowsShape, NgramVectors
from tests.kernels.window_cases import window_of

TINY = NgramRowsShape(streams=2, hidden=48, conv_kernel=3, dilation=3)
PUBLISHED = NgramRowsShape(streams=4, hidden=2560, conv_kernel=4, dilation=3)


def random_hash(
    vocabulary: int, head_rows: int, ngram_size: int, heads_per_ngram: int, device: torch.device | str = "cpu"
) -> NgramHash:
    """Odd multipliers as large as int64 allows, and parts of the table of about `head_rows` rows each."""
    heads, generator = heads_per_ngram * (ngram_size - 1), torch.Generator().manual_seed(head_rows)
    half_bound = ((1 << 63) - 1) // vocabulary // 2
    multipliers = torch.randint(half_bound, (ngram_size,), generator=generator) * 2 + 1
    sizes = tuple(head_rows + 2 * head + 1 for head in range(heads))
    return NgramHash.of(tuple(multipliers.tolist()), sizes, 3, device)


@dataclass(frozen=True)
class NgramCase:
    """One window's products and all layers' state."""

    shape: NgramRowsShape
    products: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # key, value, query_normed
    vectors: NgramVectors
    tails: torch.Tensor  # [layers, slots, tail_rows, width]
    normed: torch.Tensor  # [layers, rows, width]
    out: torch.Tensor  # [rows, width]


def random_case(
    shape: NgramRowsShape, layers: int, slots: int, rows: int, device: torch.device | str = "cpu", seed: int = 0
) -> NgramCase:
    """Row 0's key meets its query nowhere: a match of exactly 0."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device)

    products = normal(rows, shape.width), normal(rows, shape.hidden), normal(rows, shape.width)
    products[2][0] = 0.0
    vectors = NgramVectors(
        1.0 + 0.1 * normal(shape.width), 1.0 + 0.1 * normal(shape.width), 0.5 * normal(shape.conv_kernel, shape.width)
    )
    tails = normal(layers, slots, shape.tail_rows, shape.width)
    normed, out = normal(layers, rows, shape.width), torch.full((rows, shape.width), 7.0, device=device)
    return NgramCase(shape, products, vectors, tails, normed, out)


def check_runs(finish: Callable[..., None], commit: Callable[..., None], device: torch.device | str = "cpu") -> None:
    """Rows of one slot in runs longer and shorter than the tail: with a commit in between they have the same bits."""
    rows, runs, slot = 25, ((0, 11), (11, 14), (14, 25)), 1
    case = random_case(TINY, 1, 2, rows, device)
    history = torch.tensor([[8, 9], [8, 9]], dtype=torch.int32, device=device)
    tails, whole = case.tails.clone(), window_of([(slot, rows)], rows, device=device)
    finish(*case.products, whole, tails[0], case.vectors, TINY, case.normed[0], case.out)
    out = torch.empty_like(case.out)
    for begin, end in runs:
        some = window_of([(slot, end - begin)], end - begin, device=device)
        some.tokens.copy_(whole.tokens[begin:end])
        normed = torch.empty(1, end - begin, TINY.width, device=device)
        products = [each[begin:end] for each in case.products]
        finish(*products, some, tails[0], case.vectors, TINY, normed[0], out[begin:end])
        commit(history, tails, normed, some, some.segment_counts)
    assert torch.equal(out.view(torch.int32), case.out.view(torch.int32)), "rows have other bits"
    assert torch.equal(tails[0, slot], case.normed[0, -TINY.tail_rows :]), "the tail is not that of the last rows"
    assert torch.equal(history[slot], whole.tokens[-2:]) and history[0].tolist() == [8, 9]
