"""Which of all splits of layers is the best one, where what runs of them are worth on their stages adds up. Pure."""

from collections.abc import Callable, Mapping

Worth = tuple[float, ...]  # added up number by number; the larger the better, the first number counts most
WorthOf = Callable[[int, range], Worth | None]  # of a run of layers on a stage; None: it does not fit there


def best_cuts(layers: int, stages: int, worth_of: WorthOf) -> tuple[int, ...] | None:
    """The first layers of all stages but the first one, of the split that is worth most; None if none fits.

    Among equals the one that cuts earliest. Every run is asked for once on each stage where it can be.
    """
    reached: dict[int, tuple[Worth, tuple[int, ...]]] = {0: ((), ())}  # by the next layer: what is best in front of it
    for stage in range(stages):
        later = stages - 1 - stage  # each of them has a layer at least
        stops = range(stage + 1, layers - later + 1) if later else (layers,)
        ways = {stop: _ways_to(stop, stage, reached, worth_of) for stop in stops}
        reached = {stop: max(found, key=lambda each: each[0]) for stop, found in ways.items() if found}
    return reached[layers][1] if layers in reached else None


def _ways_to(
    stop: int, stage: int, reached: Mapping[int, tuple[Worth, tuple[int, ...]]], worth_of: WorthOf
) -> list[tuple[Worth, tuple[int, ...]]]:
    found = []
    for start, (before, cuts) in sorted(reached.items()):
        worth = worth_of(stage, range(start, stop)) if start < stop else None
        if worth is not None:
            added = tuple(map(sum, zip(before, worth, strict=True))) if before else worth
            found.append((added, (*cuts, start) if stage else cuts))
    return found
