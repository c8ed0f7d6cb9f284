"""Which group a running reply belongs to: the windows of a group run together, those of several side by side. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping


def balanced(running: Iterable[int], before: Mapping[int, int], groups: int) -> dict[int, int]:
    """The group of every running slot, by slot. before: those of the last window.

    A new one joins the smallest group; one moves only where the largest has two more than the smallest, so that nobody
    moves back and forth.
    """
    slots = sorted(running)
    group_of = {slot: before[slot] for slot in slots if slot in before and before[slot] < groups}
    sizes = dict.fromkeys(range(groups), 0) | Counter(group_of.values())
    for slot in slots:
        if slot not in group_of:
            group_of[slot] = _smallest(sizes)
            sizes[group_of[slot]] += 1
    while max(sizes.values()) - sizes[_smallest(sizes)] >= 2:
        largest = max(sizes, key=lambda group: (sizes[group], -group))
        moved = max(slot for slot, group in group_of.items() if group == largest)
        group_of[moved] = _smallest(sizes)
        sizes[largest] -= 1
        sizes[group_of[moved]] += 1
    return group_of


def _smallest(sizes: Mapping[int, int]) -> int:
    return min(sizes, key=lambda group: (sizes[group], group))
