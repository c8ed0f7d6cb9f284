"""The late device with several groups of slots: a road each, whose work is done whenever chance has it. Knows no test.

What has no group is done at once and waits for nobody: it is right only where the roads were joined before.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from strata.engine.reply import Reply
from strata.engine.window import WindowPart
from strata.engine.windows_ahead import Landed, WindowsAhead
from strata.models.base import Segment, WindowResult
from tests.engine.late_device import LateDevice, Place


class LateGroups(LateDevice):
    """See `LanguageModel`; `groups` are what its windows run on."""

    def __init__(self, slots: int, groups: int, chance: Random, host_chooses: frozenset[int] = frozenset()) -> None:
        super().__init__(slots, host_chooses=host_chooses)
        self.groups = [LateGroup(self) for _ in range(groups)]
        self.now: LateGroup | None = None  # whose launches come
        self.chance = chance
        self.most_side_by_side = 0

    def ahead(self) -> list[WindowsAhead]:
        return [WindowsAhead(group) for group in self.groups]

    def queue(self, work: Any) -> None:
        if self.now is None:
            work()
        else:
            self.now.work.append(work)

    def catch_up(self) -> None:
        """Some of the groups' work is done by now, or none."""
        for group in self.groups:
            group.do(self.chance.randrange(len(group.work) + 1))
        if self.now is not None:
            self.now.join()  # the host waits for its own road


class LateGroup:
    """See `WindowDevice`."""

    def __init__(self, model: LateGroups) -> None:
        self.model, self.work = model, deque[Any]()
        self.launches: list[tuple[int, ...]] = []
        self.landed = 0

    def do(self, count: int) -> None:
        for _ in range(count):
            self.work.popleft()()

    @contextmanager
    def road(self) -> Iterator[None]:
        assert self.model.now is None
        self.model.now = self
        try:
            yield
        finally:
            self.model.now = None

    def join(self) -> None:
        self.do(len(self.work))

    def chooses(self, reply: Reply) -> bool:
        return self.model.chooses(reply)

    def begin(self, parts: Mapping[int, WindowPart]) -> None:
        assert len(self.launches) == self.landed, "nothing of this group is in flight"
        for part in parts.values():
            place, reply = part.slot.state.place, part.reply
            assert part.slot.state.in_flight == 0, "nor anything of these slots"
            start = reply.last_token, reply.budget - reply.length, reply.request.stop_token_ids
            self.model.queue(lambda place=place, start=start, at=part.slot.position: _begin(place, start, at))

    def launch(self, parts: Mapping[int, WindowPart]) -> Any:
        assert self.model.now is self, "windows are launched on the group's road"
        results: dict[int, Landed] = {}
        states = {number: part.slot.state for number, part in parts.items()}
        step = self.model._step
        self.model.queue(lambda: results.update({number: step(state.place) for number, state in states.items()}))
        for state in states.values():
            state.in_flight += 1
        self.launches.append(tuple(parts))
        of_all = [len(group.launches) - group.landed for group in self.model.groups]
        self.model.most_side_by_side = max(self.model.most_side_by_side, sum(count > 0 for count in of_all))
        return results, states, len(self.launches)

    def land(self, launched: Any) -> Mapping[int, Landed]:
        results, states, order = launched
        assert order == self.landed + 1, "a group's windows land in their order"
        self.landed = order
        while not results:
            self.do(1)
        for number, landed in results.items():
            states[number].land(len(landed.tokens))
        return results

    def window(self, segments: Sequence[Segment]) -> WindowResult:
        return self.model.window(segments)

    def commit(self, window: WindowResult, accepted_rows: Sequence[int]) -> None:
        self.model.commit(window, accepted_rows)

    def forget(self) -> None:
        self.join()
        self.landed = len(self.launches)


def _begin(place: Place, start: tuple[int, int, frozenset[int]], position: int) -> None:
    assert position == len(place.tokens), "a reply begins where its slot stands"
    place.last_token, place.left, place.stop = start
