"""For clients that cannot use a call in pieces: each call at once when it is complete, and never one that was cut off.

Knows the events of a reply; a reply that is not streamed goes through it as well.
"""

import dataclasses
from collections.abc import Iterable

from strata.text.reply_events import ReplyEvent, ToolArguments, ToolCallBegun, ToolCallEnded


class WholeCalls:
    """Passes one reply's events on. `left_out` holds the ends of calls that were not passed on; others move up."""

    def __init__(self) -> None:
        self.left_out: list[ToolCallEnded] = []
        self._begun: ToolCallBegun | None = None
        self._passed = 0

    def feed(self, events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
        """What of these may be told now."""
        told: list[ReplyEvent] = []
        for event in events:
            if isinstance(event, ToolCallBegun):
                self._begun = dataclasses.replace(event, index=self._passed)
            elif isinstance(event, ToolCallEnded):
                told += self._ended(event)
            elif not isinstance(event, ToolArguments):
                told.append(event)
        return told

    def _ended(self, event: ToolCallEnded) -> list[ReplyEvent]:
        if not event.is_complete or self._begun is None:
            self.left_out.append(event)
            return []
        begun, index = self._begun, self._passed
        self._passed += 1
        return [begun, ToolArguments(index, event.arguments), ToolCallEnded(index, True, event.arguments)]
