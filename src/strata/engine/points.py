"""Which points of all slots are worth their memory. Pure: positions in rising order, numbers of requests, a count.

A point is a checkpoint behind which another prompt may go on. All take the same memory, so the budget is a number of
them, shared by all slots:

    | guaranteed | guaranteed | ... of every slot, whether it has them or not | lent to whoever asks first |

A slot that has more than it is guaranteed gives up its own, the one with most first, so that a request of a few points
never costs another conversation one of those it was guaranteed, and none at all while the others keep room for it.
Parked conversations are guaranteed none: what they have is lent, and they can be gone on with without.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

MOST_GUARANTEED = 4  # what a prompt of up to 16,384 tokens asks for: its root, the last turns' starts, its last line


class Kept(Protocol):
    """A point that is kept or wanted."""

    @property
    def position(self) -> int:
        """Rows in front of it."""
        ...

    @property
    def use(self) -> int:
        """Rises with requests: the last one that took it or went on from it."""
        ...


@dataclass(frozen=True)
class WantedPoint:
    """See `Kept`."""

    position: int
    use: int


@dataclass(frozen=True)
class PointBudget:
    """Room for so many points of so many slots."""

    points: int
    slots: int

    @property
    def guaranteed(self) -> int:
        """Points that a slot has room for whatever the others do; the last one of each at least."""
        return max(1, min(MOST_GUARANTEED, self.points // self.slots))


def points_given_up(
    held: Mapping[int, Sequence[Kept]], budget: PointBudget, parked: Collection[int] = ()
) -> dict[int, set[int]]:
    """Positions to give up, by slot, so that what is held keeps the budget. A point of two slots counts twice.

    The last point of a slot always stays: its next prompt parts from this one near its end. The first one, its root,
    goes only behind all others. parked: which of them are no slots.
    """
    left = {slot: list(points) for slot, points in held.items()}
    least = {slot: 0 if slot in parked else budget.guaranteed for slot in left}
    empty = budget.guaranteed * (budget.slots - sum(slot not in parked for slot in left))
    given_up: dict[int, set[int]] = {}
    while sum(max(least[slot], len(points)) for slot, points in left.items()) + empty > budget.points:
        lent = [slot for slot, points in left.items() if len(points) > least[slot]]
        slot = max(lent, key=lambda each: (len(left[each]), -_last_use(left[each])), default=None)
        if slot is None:
            break  # more slots than the budget has room for: each keeps its last
        index = _least_worth(left[slot])
        given_up.setdefault(slot, set()).add(left[slot].pop(index).position)
    return given_up


def _last_use(points: Sequence[Kept]) -> int:
    return max((point.use for point in points), default=0)


def _least_worth(points: Sequence[Kept]) -> int:
    """The one that was not used for longest; of one request's the one that leaves the smallest gap."""
    if len(points) <= 2:
        return 0
    return min(
        range(1, len(points) - 1),
        key=lambda index: (points[index].use, points[index + 1].position - points[index - 1].position),
    )
