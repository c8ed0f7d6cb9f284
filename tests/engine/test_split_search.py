"""The best of all splits is the best of all splits: held against trying each of them."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine.split_search import Worth, best_cuts


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(1, 4), st.randoms(use_true_random=False))
def test_it_is_worth_as_much_as_the_best_of_all(layers: int, stages: int, random: object) -> None:
    worths: dict[tuple[int, int, int], Worth | None] = {
        (stage, start, stop): None if random.random() < 0.2 else (float(random.randint(0, 3)), -random.random())  # type: ignore[attr-defined]
        for stage in range(stages)
        for start in range(layers)
        for stop in range(start + 1, layers + 1)
    }
    asked: list[tuple[int, int, int]] = []

    def worth_of(stage: int, run: range) -> Worth | None:
        asked.append((stage, run.start, run.stop))
        return worths[asked[-1]]

    found = best_cuts(layers, stages, worth_of)
    every = {cuts: total(cuts, worths, layers) for cuts in combinations(range(1, layers), stages - 1)}
    there = {cuts: worth for cuts, worth in every.items() if worth is not None}
    assert (found is None) == (not there)
    assert found is None or there[found] == max(there.values())
    assert len(asked) == len(set(asked))


def total(
    cuts: tuple[int, ...], worths: dict[tuple[int, int, int], Worth | None], layers: int
) -> tuple[float, float] | None:
    first, second = 0.0, 0.0
    for stage, (start, stop) in enumerate(pairwise((0, *cuts, layers))):
        worth = worths[stage, start, stop]
        if worth is None:
            return None
        first, second = first + worth[0], second + worth[1]
    return first, second


def test_among_equals_it_cuts_earliest_and_more_stages_than_layers_have_no_split() -> None:
    assert best_cuts(6, 3, lambda *_: (1.0,)) == (1, 2)
    assert best_cuts(2, 3, lambda *_: (1.0,)) is None
    assert best_cuts(5, 1, lambda *_: (1.0,)) == ()
