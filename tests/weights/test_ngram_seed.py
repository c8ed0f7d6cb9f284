"""The seed of an n-gram hash comes back from its multipliers, which the model's own formula made."""

import pytest

from strata.models.blocks.ngram_embedding import NgramShape
from strata.weights.ngram_seed import DEFAULT_SEED, find_seed


def multipliers(seed: int, vocabulary: int) -> tuple[int, ...]:
    return NgramShape(vocabulary, 3, 2, 32, 61, 8, seed, 0, 4, 4).multipliers


@pytest.mark.parametrize("seed", [0, 9, DEFAULT_SEED, 2**31, 123_456_789_012])
@pytest.mark.parametrize("vocabulary", [1, 96, 8192, 248_320])
def test_the_seed_comes_back(seed: int, vocabulary: int) -> None:
    found = find_seed(multipliers(seed, vocabulary), vocabulary)
    assert found is not None
    assert multipliers(found, vocabulary) == multipliers(seed, vocabulary)


def test_other_numbers_have_no_seed() -> None:
    assert find_seed([], 96) is None
    assert find_seed([2, 4, 6], 96) is None
    assert find_seed([3, 5, 7], 96) is None
    assert find_seed([2**64 - 1, 5, 7], 96) is None
