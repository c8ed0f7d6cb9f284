"""Window steps of an engine: every group's windows, by the device one ahead or by the host, and what they gave.

Knows which windows are launched and landed in which order; knows no request, and nothing of reads. Each group of slots
has windows of its own, which run beside those of the others. In a step every group's next window is launched before
that of the first one has landed, so that one group's is computed while the host looks at another's:

    step       1                    2             3: one of group B is the host's
    launched   A1 A2 B1 B2          A3 B3         A4
    landed     A1 B1                A2 B2         B3, the host's window, A3
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strata.engine.failures import is_requests_failure
from strata.engine.reply import Reply
from strata.engine.slot import Slot
from strata.engine.steps import Window
from strata.engine.window import ComputesWindows, WindowOutcome, WindowPart, run_window
from strata.engine.windows_ahead import Outcome, WindowsAhead


@dataclass(frozen=True)
class Given:
    """What a window gave for a slot."""

    slot: int
    outcome: Outcome
    drafted: int = 0


class WindowSteps:
    """Of one engine, whose slots and replies it is shown. Slots are known by their numbers."""

    def __init__(
        self,
        model: ComputesWindows,
        slots: Mapping[int, Slot],
        replies: Mapping[int, Reply],
        depth: int,
        ahead: Sequence[WindowsAhead] = (),
    ) -> None:
        """depth: most drafts behind a token. ahead: one for each group; none: the host chooses all tokens."""
        self._model, self._slots, self._replies, self._depth = model, slots, replies, depth
        self._ahead = tuple(ahead)
        self._group_of: dict[int, int] = {}  # where slots had windows since all roads met
        self.rows = 0  # computed so far

    def run(self, step: Window) -> list[Given]:
        """The next window of each reply. A failure of a request is its outcome; any other is raised."""
        if not self._ahead:
            return self._by_host(self._model, step.most_drafts)
        members = self._members(step)
        given = self._land_others(members)
        self._meet(members)
        due, by_host = list[Callable[[], dict[int, Outcome]]](), list[int]()
        for group, most_drafts in enumerate(members):
            parts = self._parts(most_drafts)
            if not self._ahead[group].takes(parts.values()):
                by_host.append(group)
            elif parts:
                due.append(self._ahead[group].advance(parts, goes_on=step.goes_on))
        for group in by_host:
            device = self._ahead[group].device
            with device.road():
                given += self._by_host(device, self._running(members[group]))
        for land in due:
            given += self._landed(land())
        return given

    def land(self) -> list[Given]:
        """What windows gave that are under way; whatever is launched from now on comes behind them."""
        given = [each for ahead in self._ahead for each in self._landed(ahead.land())]
        self._join(self._ahead)
        self._group_of.clear()
        return given

    def forget(self) -> None:
        """Nobody will ask for what is in flight."""
        for ahead in self._ahead:
            ahead.forget()
        self._join(self._ahead)
        self._group_of.clear()

    def _members(self, step: Window) -> list[dict[int, int]]:
        """The most drafts of each slot, by groups."""
        members: list[dict[int, int]] = [{} for _ in self._ahead]
        for number, most in step.most_drafts.items():
            members[step.groups.get(number, 0) if len(members) > 1 else 0][number] = most
        return members

    def _land_others(self, members: Sequence[Mapping[int, int]]) -> list[Given]:
        """What is in flight and not the next window of its group, or has a slot that another group has now."""
        elsewhere = {number: group for group, numbers in enumerate(members) for number in numbers}
        given = list[Given]()
        for group, (ahead, most_drafts) in enumerate(zip(self._ahead, members, strict=True)):
            is_next = bool(most_drafts) and ahead.is_in_flight_for(most_drafts)
            if not is_next or any(elsewhere.get(number, group) != group for number in ahead.in_flight):
                given += self._landed(ahead.land())
        return given

    def _meet(self, members: Sequence[Mapping[int, int]]) -> None:
        """A slot that comes from another group comes behind everything that was launched for it there."""
        now = {number: group for group, numbers in enumerate(members) for number in numbers}
        left = {before for number, group in now.items() if (before := self._group_of.get(number, group)) != group}
        self._join([self._ahead[group] for group in left])
        self._group_of |= now

    def _join(self, groups: Sequence[WindowsAhead]) -> None:
        for ahead in groups:
            ahead.device.join()

    def _running(self, most_drafts: Mapping[int, int]) -> dict[int, int]:
        """Those whose replies go on."""
        return {
            number: most
            for number, most in most_drafts.items()
            if number in self._replies and self._replies[number].reason is None
        }

    def _parts(self, most_drafts: Mapping[int, int]) -> dict[int, WindowPart]:
        return {number: self._part(number, most) for number, most in self._running(most_drafts).items()}

    def _part(self, number: int, most_drafts: int) -> WindowPart:
        reply = self._replies[number]
        return WindowPart(self._slots[number], reply, reply.drafts(most_drafts))

    def _landed(self, outcomes: Mapping[int, Outcome]) -> list[Given]:
        self.rows += len(outcomes)
        return [Given(number, outcome) for number, outcome in outcomes.items()]

    def _by_host(self, model: ComputesWindows, most_drafts: Mapping[int, int]) -> list[Given]:
        """One window whose tokens are chosen here."""
        parts = {number: self._part(number, most) for number, most in most_drafts.items()}
        outcomes: Sequence[WindowOutcome | Exception]
        try:
            outcomes = run_window(model, tuple(parts.values()), self._depth, is_requests_failure)
            self.rows += sum(1 + len(part.drafts) for part in parts.values())
        except Exception as failure:
            if not is_requests_failure(failure):
                raise
            if len(parts) > 1:  # whose fault it is shows when each is alone
                return [each for number, most in most_drafts.items() for each in self._by_host(model, {number: most})]
            outcomes = [failure]
        return [
            Given(number, outcome, len(part.drafts))
            for (number, part), outcome in zip(parts.items(), outcomes, strict=True)
        ]
