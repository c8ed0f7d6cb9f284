"""Conversations in groups whose windows run side by side, as the engine runs them: each group is one window ahead.

Knows in which order windows are launched and landed; what a conversation is made of is in `conversations.py`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strata.bench.conversations import ConversationPlan, Conversations
from strata.engine.group_roads import GroupRoads
from strata.models.device.description import DeviceModel

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GroupedConversations:
    """The same conversations as one stage has, their slots shared out to groups one after another."""

    groups: Sequence[Conversations]
    roads: GroupRoads

    @classmethod
    def open(cls, model: DeviceModel, plan: ConversationPlan, groups: int) -> "GroupedConversations":
        """A stage for each group, beside each other. Numbers of conversations that groups cannot share are left out."""
        sizes = tuple(dict.fromkeys(slots // groups for slots in plan.slots if is_shared(slots, groups)))
        of_group = replace(plan, slots=(*sizes, max(plan.slots)))  # the last one: room for all
        found = [Conversations.open(model, of_group)]
        for group in range(1, groups):
            found.append(Conversations.open(model.for_group(group), of_group, beside=found[0]))
        return cls(found, GroupRoads([model.device], groups))

    @property
    def streams(self) -> Sequence["torch.cuda.Stream"]:
        """Of the groups' windows, beside the current one."""
        return self.roads.beside_main(self.groups[0].stage.device)

    def decode(self, slots: int, windows: int) -> float:
        """Seconds of some windows of every group one behind the other. Raises EngineError if one gave no token."""
        share, stage = slots // len(self.groups), self.groups[0].stage
        for number, group in enumerate(self.groups):
            group.first = number * share
            with self.roads.of_group(number):
                group.begin(share)
        stage.wait()
        begin = time.perf_counter()
        for _ in range(windows):
            for number, group in enumerate(self.groups):
                with self.roads.of_group(number):
                    group.launch(share)
            for group in self.groups:
                group.land_due()
        stage.wait()
        taken = time.perf_counter() - begin
        self.tokens(slots)
        return taken

    def tokens(self, slots: int) -> list[int]:
        """What the last windows gave, by slots. Raises EngineError if that is not one token for each."""
        share = slots // len(self.groups)
        return [token for group in self.groups for token in group.tokens(share)]


def is_shared(slots: int, groups: int) -> bool:
    """Whether each group gets as many."""
    return slots % groups == 0
